"""What the exporter thread computes for a span: making, encoding and sending, in CPU time.

    .venv/bin/python bench/spans.py

Spans are those of the executor for batches of 32 requests that are all traced. The collector is
a thread that takes what comes; its time does not count. The loop is warm: in a mesh, where each
process finds the caches full of the others, all of it takes two to three times as long.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from sits_bench.groups.tracing import collecting
from sits_core.otlp_encoding import encode, encode_resource
from sits_core.otlp_sender import Sender
from sits_core.otlp_target import Protocol, Target
from sits_core.tracing import Attribute, Later, NewId, SpanRecord, Tracer, span_below, spans_in

REQUESTS: Final = 32
STAGES: Final = ("queue", "input", "infer", "output")
BATCHES: Final = (1, 8)
"""Of 128 spans, that are sent at once."""
ROUNDS: Final = 30


def main() -> None:
    with collecting() as collector:
        target = Target(Protocol.HTTP, f"http://127.0.0.1:{collector.server_port}/v1/traces", "")
        sender, resource = Sender(target), encode_resource({"service.name": "bench"})
        for batches in BATCHES:
            spans = finished(batches)
            message = encode(spans_in(spans), resource)
            encoding = median_us(lambda: encode(spans_in(spans), resource))  # noqa: B023 - called here
            sending = median_us(partial(sender.send, message))
            count = batches * REQUESTS * len(STAGES)
            print(
                f"{count:5} spans, {len(message):,} bytes: make and encode "
                f"{encoding / count:.2f} us a span, send {sending:.0f} us in all"
            )


def finished(batches: int) -> list[Later]:
    tracer = Tracer("bench", 0, 1.0)
    kept: list[Later] = []
    tracer.add_sink(kept.append)  # type: ignore[arg-type]  # only `Later` come here
    for number in range(batches):
        tracer.record_later(REQUESTS * len(STAGES), batch(tracer, number))
    return kept


def batch(tracer: Tracer, number: int) -> Callable[[NewId], list[SpanRecord]]:
    parents = [tracer.new_trace() for _ in range(REQUESTS)]
    common: dict[str, Attribute] = {
        "model": "mlp", "version": "1", "batch_rows": REQUESTS, "instance": "executor-0",
        "execution": number,
    }  # fmt: skip

    def make(new_id: NewId) -> list[SpanRecord]:
        return [
            span_below(parent, new_id(), f"executor.{stage}", 1, 2, {**common, "rows": 1})
            for parent in parents
            for stage in STAGES
        ]

    return make


def median_us(call: Callable[[], object]) -> float:
    times: list[int] = []
    for _ in range(ROUNDS):
        began_ns = time.thread_time_ns()
        call()
        times.append(time.thread_time_ns() - began_ns)
    return statistics.median(times) / 1e3


if __name__ == "__main__":
    main()
