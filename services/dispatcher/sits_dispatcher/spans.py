"""Spans of the dispatcher: its decision, and the ways to it, on to the executor and back.

The ways are recorded here because both ends' stamps come together here.
"""

from sits_core.tracing import Attribute, NewId, SpanRecord, TraceContext, Tracer, span_below
from sits_dispatcher.job import Attempt, Job
from sits_dispatcher.placer import Placed
from sits_protos.v1.link_pb2 import StageTimes


def placed(
    tracer: Tracer, job: Job, decision: Placed, started_ns: int, origins: tuple[TraceContext, ...]
) -> None:
    """The way from the front, and the decision; linked to the weights it was based on."""
    header, received_ns, sent_ns = job.header, job.received_ns, job.sent_ns
    closed_ns, first = header.closed_unix_ns, job.moves == 0 and job.attempt is Attempt.FIRST
    attributes: dict[str, Attribute] = {
        "strategy": decision.strategy,
        "instance": decision.executor,
        "model": header.model,
        "version": header.version,
        "batch_rows": header.rows,
        "moves": job.moves,
        "attempt": job.attempt.name.lower(),
        "waited_us": (started_ns - received_ns) // 1000,
    }
    contexts, scores = job.traces(), decision.scores

    def make(new_id: NewId) -> list[SpanRecord]:
        scored = {f"score.{name}": round(value, 4) for name, value in scores.items()}
        said, spans = attributes | scored, []
        for context in map(TraceContext.of_wire, contexts):
            if first:
                spans.append(
                    span_below(context, new_id(), "dispatcher.receive", closed_ns, received_ns, {})
                )
            spans.append(
                span_below(
                    context, new_id(), "dispatcher.place", received_ns, sent_ns, said, origins
                )
            )
        return spans

    tracer.record_later(len(contexts) * (1 + first), make)


def returned(tracer: Tracer, job: Job, times: StageTimes) -> None:
    """The ways to the executor and back."""
    contexts, sent_ns = job.traces(), job.sent_ns
    arrived_ns, left_ns = times.executor_received, times.executor_sent
    returned_ns = times.dispatcher_returned

    def make(new_id: NewId) -> list[SpanRecord]:
        ways = (
            ("dispatcher.send", sent_ns, arrived_ns),
            ("dispatcher.return", left_ns, returned_ns),
        )
        return [
            span_below(context, new_id(), *way, {})
            for context in map(TraceContext.of_wire, contexts)
            for way in ways
        ]

    tracer.record_later(2 * len(contexts), make)
