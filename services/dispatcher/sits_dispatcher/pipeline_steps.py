"""The pipelines that the dispatcher runs step by step, and their batches under way."""

from collections.abc import Sequence
from typing import Protocol

from sits_channel.pool_reader import PoolReader
from sits_dispatcher.job import Front
from sits_dispatcher.micro_batches import Part
from sits_dispatcher.pipeline_run import PipelineRun
from sits_dispatcher.pipelines import Pipelines, Plan
from sits_protos.v1.common_pb2 import PayloadRef
from sits_protos.v1.link_pb2 import Cancel
from sits_scheduling.candidates import ExecutorTable
from sits_scheduling.explain import PathStep
from sits_scheduling.paths import Later


class Accepting(Protocol):
    """What runs one step: the dispatcher."""

    table: ExecutorTable

    def accept_step(
        self, front: Front, part: Part, later: Sequence[Later], path: PathStep
    ) -> None: ...
    def cancel(self, front: Front, cancel: Cancel) -> None: ...
    def front_lost(self, front: Front) -> None: ...
    def release(self, executor: str, slots: Sequence[PayloadRef]) -> None: ...


class PipelineSteps:
    """Not thread-safe: the dispatcher's lock covers it."""

    def __init__(self, dispatcher: Accepting, reader: PoolReader) -> None:
        self.pipelines = Pipelines()
        self._dispatcher, self._reader = dispatcher, reader
        self._runs: set[PipelineRun] = set()

    def __len__(self) -> int:
        return len(self._runs)

    def __repr__(self) -> str:
        return f"<PipelineSteps {len(self)} batches under way>"

    # for the dispatcher

    def capacity(self, key: str) -> tuple[int, int, int]:
        """Of a model or a pipeline: see `Pipelines.capacity`."""
        return self.pipelines.capacity(key, self._dispatcher.table)

    def begin(self, plan: Plan, front: Front, part: Part) -> None:
        run = PipelineRun(self, plan, self._reader, front, part)
        self._runs.add(run)
        run.start()

    def cancelled(self, front: Front, cancel: Cancel) -> None:
        """Nobody waits for these requests of the front's batch any more."""
        for run in [r for r in self._runs if r.front is front and r.batch_id == cancel.batch_id]:
            first, last = run.part.first, run.part.first + run.part.header.requests
            ours = [request - first for request in cancel.requests if first <= request < last]
            if ours or not cancel.requests:
                run.cancel(ours)

    def lost(self, front: Front) -> None:
        for run in [r for r in self._runs if r.front is front]:
            run.abandon()

    # for a batch under way

    def start(self, front: Front, part: Part, later: Sequence[Later], path: PathStep) -> None:
        self._dispatcher.accept_step(front, part, later, path)

    def cancel(self, front: Front, cancel: Cancel) -> None:
        self._dispatcher.cancel(front, cancel)

    def front_lost(self, front: Front) -> None:
        self._dispatcher.front_lost(front)

    def give_back(self, executor: str, slots: Sequence[PayloadRef]) -> None:
        self._dispatcher.release(executor, slots)

    def place_of(self, executor: str) -> tuple[str, int, str]:
        found = self._dispatcher.table.executor(executor)
        return ("", -1, "") if found is None else (found.host, -1, found.device)

    def ended(self, run: PipelineRun) -> None:
        self._runs.discard(run)
