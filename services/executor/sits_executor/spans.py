"""Spans of the executor's four stages, one set for each sampled request of a batch."""

from collections.abc import Sequence
from typing import NamedTuple

from sits_core.tracing import (
    Attribute,
    Make,
    NewId,
    SpanRecord,
    TraceContext,
    Tracer,
    is_sampled,
    span_below,
)
from sits_executor.answers import Run
from sits_executor.batch import Batch

Stage = tuple[str, int, int]


class _Sampled(NamedTuple):
    """What is remembered of a request."""

    parent: bytes
    rows: int
    error: str


class Spans:
    def __init__(self, tracer: Tracer, instance: str) -> None:
        self._tracer, self._instance = tracer, instance

    def record(self, batch: Batch, run: Run) -> None:
        """After the batch was answered, so that tracing delays nobody."""
        if not batch.header.trace_contexts:
            return
        sampled = [
            _Sampled(parent, request.rows, _error(run, position))
            for position, request in enumerate(batch.requests)
            if is_sampled(parent := request.trace_context)
        ]
        if sampled:
            stages = _stages(run)
            make = self._maker(batch, run, sampled, stages)
            self._tracer.record_later(len(sampled) * len(stages), make)

    def _maker(
        self, batch: Batch, run: Run, sampled: Sequence[_Sampled], stages: Sequence[Stage]
    ) -> Make:
        """Remembers names and numbers, and nothing that is large."""
        common: dict[str, Attribute] = {
            "model": batch.header.model,
            "version": batch.header.version,
            "batch_rows": run.executed_rows,
            "instance": self._instance,
            "execution": run.execution,
        }

        def make(new_id: NewId) -> list[SpanRecord]:
            spans: list[SpanRecord] = []
            for wire, rows, error in sampled:
                parent, said = TraceContext.of_wire(wire), {**common, "rows": rows}
                spans += [span_below(parent, new_id(), *stage, said, (), error) for stage in stages]
            return spans

        return make


def _error(run: Run, position: int) -> str:
    return run.errors[position].reason if position in run.errors else ""


def _stages(run: Run) -> list[Stage]:
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
