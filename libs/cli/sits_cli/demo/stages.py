"""Where the time goes: traced requests, their spans from all services, and percentiles."""

import math
import secrets
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from tritonclient import grpc as triton

from sits_cli import spans
from sits_cli.client import Place
from sits_cli.commands.infer import headers
from sits_cli.commands.trace import find_soon
from sits_cli.demo.calls import send
from sits_cli.demo.throughput import BATCHED, WIDTH
from sits_cli.front import Client
from sits_core.waterfall import ROOT_NAME, Span, Waterfall, build

TRAVEL = "between services"
REQUESTS, AT_ONCE = 200, 8
SERVICES = {"preprocess", "dispatcher", "executor", "topology"}
ORDER = (
    ROOT_NAME, "preprocess.queue", "dispatcher.receive", "dispatcher.place", "dispatcher.send",
    "executor.queue", "executor.input", "executor.infer", "executor.output", "dispatcher.return",
    "preprocess.answer",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stage:
    name: str
    count: int
    p50_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class Stages:
    """`waterfall` is one of the requests."""

    stages: tuple[Stage, ...]
    waterfall: Waterfall

    @property
    def right(self) -> bool:
        """One trace has spans of all four services."""
        return set(self.waterfall.services) >= SERVICES


def run(client: Client, places: Sequence[Place]) -> Stages:
    ids = [secrets.token_bytes(16) for _ in range(REQUESTS)]
    tensor = triton.InferInput("INPUT", [1, WIDTH], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, WIDTH), np.float32))
    waiting = []
    for trace_id in ids:
        waiting.append(send(client, BATCHED, [tensor], headers=headers("", trace_id)))
        if len(waiting) == AT_ONCE:
            waiting.pop(0).result()
    for call in waiting:
        call.result()
    found = find_soon(list(places), ids[-1])
    wanted = set(ids)
    own = [span for span in spans.fetch(places).spans if span.trace_id in wanted]
    between = travel(own)
    return Stages((*summarize(own), *([between] if between.p99_s else [])), found)


def summarize(found: Iterable[Span]) -> list[Stage]:
    """In the order in which a request passes them."""
    times: dict[str, list[float]] = defaultdict(list)
    for span in found:
        times[span.name].append((span.end_ns - span.start_ns) / 1e9)
    names = sorted(times, key=lambda name: (ORDER.index(name) if name in ORDER else 99, name))
    return [
        Stage(name, len(times[name]), percentile(times[name], 0.5), percentile(times[name], 0.99))
        for name in names
    ]


def travel(found: Iterable[Span]) -> Stage:
    """Time of each request on the way between services, there and back."""
    traces: dict[bytes, list[Span]] = defaultdict(list)
    for span in found:
        traces[span.trace_id].append(span)
    times = [build(trace_id, own).travel_ns / 1e9 for trace_id, own in traces.items()]
    return Stage(TRAVEL, len(times), percentile(times, 0.5), percentile(times, 0.99))


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
