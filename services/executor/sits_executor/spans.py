"""Spans of the executor's four stages, one set for each sampled request of a batch."""

from sits_core.tracing import Attribute, TraceContext, Tracer
from sits_executor.answers import Run
from sits_executor.batch import Batch


class Spans:
    def __init__(self, tracer: Tracer, instance: str) -> None:
        self._tracer, self._instance = tracer, instance

    def record(self, batch: Batch, run: Run) -> None:
        """After the batch was answered, so that tracing delays nobody."""
        if not batch.header.trace_contexts:
            return
        for position, request in enumerate(batch.requests):
            context = TraceContext.from_wire(request.trace_context)
            if context is not None:
                self._request(batch, run, position, context)

    def _request(self, batch: Batch, run: Run, position: int, context: TraceContext) -> None:
        attributes: dict[str, Attribute] = {
            "model": batch.header.model,
            "version": batch.header.version,
            "rows": batch.requests[position].rows,
            "batch_rows": run.executed_rows,
            "instance": self._instance,
            "execution": run.execution,
        }
        error = run.errors[position].reason if position in run.errors else ""
        for name, start_ns, end_ns in _stages(run):
            self._tracer.record(name, context, start_ns, end_ns, attributes, error=error)


def _stages(run: Run) -> list[tuple[str, int, int]]:
    """Stages that were reached; each ends where the next begins."""
    stages = run.stages
    reached = [
        (name, start)
        for name, start in (
            ("executor.queue", stages.received),
            ("executor.input", stages.input),
            ("executor.infer", stages.infer),
            ("executor.output", stages.output),
        )
        if start
    ]
    ends = [start for _, start in reached[1:]] + [stages.sent]
    return [(name, start, end) for (name, start), end in zip(reached, ends, strict=True)]
