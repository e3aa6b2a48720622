"""The threads that run batches of one model version, one for each instance."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from sits_core.clock import now_ns
from sits_executor.batch import Batch
from sits_executor.queue import BatchQueue

log = structlog.get_logger()

FEW: Final = 8
"""Requests of a batch that may run on the thread that brought it. Larger ones come when much waits:
then that thread had better read the next one meanwhile."""

SHORT_NS: Final = 500_000
"""A batch that is done sooner may run on the thread that brought it. To wake another one costs
about a tenth of that, and until it is done nothing else of its link is read."""


@dataclass(frozen=True, slots=True)
class Lane:
    """Instances for some batches only; `enter` is called by each of their threads."""

    name: str
    enter: Callable[[], object]
    wanted: Callable[[Batch], bool]


class Instances:
    """Each takes the next batch when it has finished one. With `lanes`, each lane has as many.

    Closing the queue lets what was accepted finish; then the last thread calls `closed`. `run` says
    whether all of the batch ran: what is dropped or refused tells nothing of how long runs take.

    `never_waits`: runs only compute. Then a batch that finds an instance idle runs on the thread
    that brings it, in the instance's place, if the last ones of its size were short.
    """

    def __init__(
        self,
        name: str,
        count: int,
        queue: BatchQueue,
        run: Callable[[Batch], bool],
        closed: Callable[[], None],
        lanes: Sequence[Lane] = (),
        *,
        never_waits: bool = False,
    ) -> None:
        self._queue, self._run, self._closed = queue, run, closed
        self._short_rows = 0
        self._only_computes = never_waits and not lanes
        if self._only_computes:
            queue.run_here = self._run_here
        each: list[Lane | None] = [*lanes] or [None]
        self._alive = count * len(each)
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(
                target=self._work, args=(lane,), name=_thread_name(name, index, lane), daemon=True
            )
            for lane in each
            for index in range(count)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    @property
    def computing(self) -> Sequence[threading.Thread]:
        """Its threads, if they do nothing but compute, on any processor."""
        return self._threads if self._only_computes else ()

    def _work(self, lane: Lane | None) -> None:
        if lane is not None:
            self._enter(lane)
        while (batch := self._next(lane)) is not None:
            self._run_one(batch)
        with self._lock:
            self._alive -= 1
            last = self._alive == 0
        if last:
            self._closed()

    def _run_one(self, batch: Batch) -> None:
        started_ns, whole = now_ns(), False
        try:
            whole = self._run(batch)
        except Exception:  # the thread must outlive whatever escaped
            log.exception("instance.broken", batch=repr(batch))
        if now_ns() - started_ns >= SHORT_NS:
            self._short_rows = min(self._short_rows, batch.rows - 1)
        elif whole:
            self._short_rows = max(self._short_rows, batch.rows)

    def _run_here(self, batch: Batch) -> bool:
        """On the calling thread. False when it is to be queued."""
        few = len(batch.requests) <= FEW and batch.rows <= self._short_rows
        if not few or not self._queue.lend():
            return False
        try:
            self._run_one(batch)
        finally:
            self._queue.give_back()
        return True

    def _enter(self, lane: Lane) -> None:
        """A thread that cannot runs nevertheless: it was tried when the process started."""
        try:
            lane.enter()
        except Exception:  # whoever takes the cgroup away meanwhile
            log.exception("instance.outside_lane", lane=lane.name)

    def _next(self, lane: Lane | None) -> Batch | None:
        return self._queue.read() if lane is None else self._queue.read_only(lane.wanted)

    def __repr__(self) -> str:
        return f"<Instances {self._alive} alive, {self._queue!r}>"


def _thread_name(name: str, index: int, lane: Lane | None) -> str:
    return f"{name} #{index}" if lane is None else f"{name} {lane.name} #{index}"
