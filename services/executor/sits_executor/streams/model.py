"""One model as the scheduler sees it: what waits, what is staged, and whether it may start."""

import heapq
from collections.abc import Callable
from itertools import count

from sits_executor.backends.streamed import DeviceLost, StreamBackend
from sits_executor.queue import BatchQueue, Rank
from sits_executor.streams.buffers import Buffers
from sits_executor.streams.runner import Launched, StagedBatch, StreamRunner

_SMOOTH = 0.2
"""Weight of the newest run in what a run is expected to take."""


class StreamModel:
    """Used by the scheduler's thread only, but for the queue. `closed` is called at the end."""

    def __init__(
        self,
        name: str,
        queue: BatchQueue,
        backend: StreamBackend,
        runner: StreamRunner,
        buffers: Buffers,
        closed: Callable[[], object],
    ) -> None:
        self.name, self.queue, self.backend = name, queue, backend
        self.buffers, self._runner, self._closed = buffers, runner, closed
        self._ahead: list[tuple[Rank, int, StagedBatch]] = []
        self._numbers = count()
        self.running = 0
        self.run_s = 0.0

    def head(self) -> Rank | None:
        """Of what would start next: staged, or still in the queue."""
        waiting = self.queue.head()
        if not self._ahead:
            return waiting
        staged = self._ahead[0][0]
        return staged if waiting is None else min(staged, waiting)

    @property
    def may_start(self) -> bool:
        return self.backend.free > 0 and self.buffers.may_launch

    def start(self) -> Launched | None:
        """Launch what is next. None = it was answered instead, or must wait for memory.

        Raises `DeviceLost`; the batch is answered then.
        """
        staged = self._next()
        if staged is None:
            return None
        try:
            launched = self._runner.launch(staged)
        except DeviceLost:
            self._runner.abandon(staged)
            raise
        if launched is not None:
            self.running += 1
            self.buffers.launched(staged.rows)
        return launched

    def stage_ahead(self) -> bool:
        """Bring one more batch into host memory while all streams are busy. False = none."""
        if not self.buffers.may_stage or (taken := self.queue.take()) is None:
            return False
        place, batch = taken
        staged = self._runner.stage(batch)
        if staged is None:
            return True
        if staged.held is None:
            self.queue.put_back(place, batch)
            return False
        self._keep(place, staged)
        return True

    def land(self, launched: Launched, took_s: float) -> None:
        self._over(launched)
        self.run_s += (took_s - self.run_s) * (_SMOOTH if self.run_s else 1.0)
        self._runner.land(launched)

    def failed(self, launched: Launched, error: Exception) -> None:
        self._over(launched)
        self._runner.failed(launched, error)

    def abandon(self, launched: Launched) -> None:
        """The device is lost."""
        self._over(launched)
        self._runner.abandon(launched.staged)

    def give_back(self) -> None:
        """What is staged waits in the queue again, where it can be refused."""
        for place, _, staged in self._ahead:
            self.buffers.unstaged(staged.rows)
            self.queue.put_back(place, staged.batch)
        self._ahead.clear()

    @property
    def over(self) -> bool:
        """Unloaded, and everything accepted has been answered."""
        return self.queue.closed and not len(self.queue) and not self._ahead and not self.running

    def close(self) -> None:
        self._closed()

    def _next(self) -> StagedBatch | None:
        waiting = self.queue.head()
        if self._ahead and (waiting is None or self._ahead[0][0] < waiting):
            staged = heapq.heappop(self._ahead)[2]
            self.buffers.unstaged(staged.rows)
            return staged
        if (taken := self.queue.take()) is None:
            return None
        place, batch = taken
        new = self._runner.stage(batch)
        if new is not None and new.held is None:
            self.queue.put_back(place, batch)
            return None
        return new

    def _keep(self, place: Rank, staged: StagedBatch) -> None:
        heapq.heappush(self._ahead, (place, next(self._numbers), staged))
        self.buffers.staged(staged.rows)

    def _over(self, launched: Launched) -> None:
        self.running -= 1
        self.buffers.landed(launched.staged.rows)

    def __repr__(self) -> str:
        return f"<StreamModel {self.name} running={self.running} staged={len(self._ahead)}>"
