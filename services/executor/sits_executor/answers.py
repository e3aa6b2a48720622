"""Result messages: one for every batch, whatever became of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sits_core.clock import now_ns
from sits_core.errors import SitsError
from sits_executor.batch import Batch, Drops
from sits_executor.pipelines.backend import StepRun
from sits_protos.v1.common_pb2 import Tensor
from sits_protos.v1.link_pb2 import (
    BatchHeader,
    LinkMessage,
    RequestResult,
    ResultHeader,
    StageTimes,
)


@dataclass(slots=True)
class Stages:
    """When a batch reached each stage, Unix ns; 0 = it did not."""

    received: int
    input: int = 0
    infer: int = 0
    output: int = 0
    sent: int = 0

    def to_proto(self) -> StageTimes:
        return StageTimes(
            executor_received=self.received,
            input_started=self.input,
            infer_started=self.infer,
            output_started=self.output,
            executor_sent=self.sent,
        )


class GangRuns(NamedTuple):
    """Runs of a whole gang, and those that failed."""

    runs: int = 0
    failures: int = 0


NO_GANG: Final = GangRuns()


@dataclass(slots=True)
class Run:
    """What one batch came to: errors by position, outputs of all the others, their bytes and
    those of them that are in its message, how long the model took, and what the steps of a
    pipeline took."""

    stages: Stages
    errors: Drops = field(default_factory=dict)
    outputs: Sequence[Tensor] = ()
    executed_rows: int = 0
    execution: int = 0
    failed_runs: int = 0
    output_bytes: int = 0
    inline_bytes: int = 0
    took_s: list[float] = field(default_factory=list)
    steps: tuple[StepRun, ...] = ()
    gang: GangRuns = NO_GANG


def result(
    batch: Batch, run: Run, instance: str, version: str, content: bytes = b""
) -> LinkMessage:
    """Requests with an error have no rows in the outputs."""
    run.stages.sent = now_ns()
    header = ResultHeader(
        batch_id=batch.header.batch_id,
        requests=len(batch.requests),
        instance=instance,
        times=run.stages.to_proto(),
        executed_rows=run.executed_rows,
        version=version,
        execution=run.execution,
        payload_bytes=run.output_bytes,
        inline_bytes=run.inline_bytes,
        content=content,
        gang_runs=run.gang.runs,
        gang_failures=run.gang.failures,
    )
    for step in run.steps:
        header.steps.add(
            model=step.model, version=step.version, instance=instance, rows=step.rows,
            queue_ns=step.wait_ns, input_ns=step.input_ns, infer_ns=step.infer_ns,
        )  # fmt: skip
    return LinkMessage(result=header, results=_results(batch, run.errors), outputs=run.outputs)


def whole_failure(
    header: BatchHeader, error: SitsError, instance: str, stages: Stages, gang: GangRuns = NO_GANG
) -> LinkMessage:
    """The batch as a whole failed: a header only."""
    stages.sent = now_ns()
    return LinkMessage(
        result=ResultHeader(
            batch_id=header.batch_id,
            requests=header.requests,
            instance=instance,
            times=stages.to_proto(),
            error=error.to_proto(),
            version=header.version,
            gang_runs=gang.runs,
            gang_failures=gang.failures,
        )
    )


def _results(batch: Batch, errors: Mapping[int, SitsError]) -> list[RequestResult]:
    """One message serves all requests of as many rows: it is copied into the result."""
    fine: dict[int, RequestResult] = {}
    results: list[RequestResult] = []
    for position, request in enumerate(batch.requests):
        if position in errors:
            results.append(RequestResult(error=errors[position].to_proto(), final=True))
        elif (known := fine.get(rows := request.rows)) is not None:
            results.append(known)
        else:
            results.append(fine.setdefault(rows, RequestResult(rows=rows, final=True)))
    return results
