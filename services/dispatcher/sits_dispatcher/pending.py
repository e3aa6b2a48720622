"""Micro-batches that wait for a free executor: by priority, then by arrival."""

import heapq
from collections.abc import Callable, Iterator
from itertools import count

from sits_dispatcher.job import Job
from sits_scheduling.batching import DEFAULT_PRIORITY


class Pending:
    """Bounded. Not thread-safe: the dispatcher's lock covers it."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._lanes: dict[str, list[tuple[int, int, Job]]] = {}
        self._order = count()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, job: Job, *, force: bool = False) -> bool:
        """False when full. `force` is for jobs that were accepted before."""
        if self._length >= self._capacity and not force:
            return False
        entry = (job.header.priority or DEFAULT_PRIORITY, next(self._order), job)
        heapq.heappush(self._lanes.setdefault(job.model, []), entry)
        self._length += 1
        return True

    def first(self, model: str) -> Job | None:
        lane = self._lanes.get(model)
        return lane[0][2] if lane else None

    def pop(self, model: str) -> Job:
        job = heapq.heappop(self._lanes[model])[2]
        self._length -= 1
        if not self._lanes[model]:
            del self._lanes[model]
        return job

    def models(self) -> list[str]:
        return list(self._lanes)

    def remove(self, unwanted: Callable[[Job], bool]) -> list[Job]:
        """Take out all jobs that match."""
        removed = [job for job in self._jobs() if unwanted(job)]
        if removed:
            gone = set(map(id, removed))
            for model, lane in list(self._lanes.items()):
                kept = [entry for entry in lane if id(entry[2]) not in gone]
                heapq.heapify(kept)
                self._lanes[model] = kept
                if not kept:
                    del self._lanes[model]
            self._length -= len(removed)
        return removed

    def _jobs(self) -> Iterator[Job]:
        for lane in self._lanes.values():
            yield from (entry[2] for entry in lane)

    def __repr__(self) -> str:
        return f"<Pending {self._length}/{self._capacity} for {len(self._lanes)} models>"
