"""Spans of the dispatcher: its decision, and the ways to it, on to the executor and back.

The ways are recorded here because both ends' stamps come together here.
"""

from sits_core.tracing import Attribute, TraceContext, Tracer
from sits_dispatcher.job import Job
from sits_dispatcher.placer import Placed
from sits_protos.v1.link_pb2 import StageTimes


def placed(
    tracer: Tracer, job: Job, decision: Placed, started_ns: int, origins: tuple[TraceContext, ...]
) -> None:
    """The way from the front, and the decision; linked to the weights it was based on."""
    attributes: dict[str, Attribute] = {
        "strategy": decision.strategy,
        "instance": decision.executor,
        "model": job.header.model,
        "version": job.header.version,
        "batch_rows": job.header.rows,
        "moves": job.moves,
        "waited_us": (started_ns - job.received_ns) // 1000,
    }
    attributes |= {f"score.{name}": round(value, 4) for name, value in decision.scores.items()}
    for context in job.traces():
        if job.moves == 0:
            closed_ns = job.header.closed_unix_ns
            tracer.record("dispatcher.receive", context, closed_ns, job.received_ns, {})
        tracer.record(
            "dispatcher.place", context, job.received_ns, job.sent_ns, attributes, links=origins
        )


def returned(tracer: Tracer, job: Job, times: StageTimes) -> None:
    """The ways to the executor and back."""
    for context in job.traces():
        tracer.record("dispatcher.send", context, job.sent_ns, times.executor_received, {})
        tracer.record(
            "dispatcher.return", context, times.executor_sent, times.dispatcher_returned, {}
        )
