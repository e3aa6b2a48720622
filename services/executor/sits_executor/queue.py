"""The queue in front of one model version: urgent first, then earliest deadline, then arrival."""

import heapq
import threading
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from sits_channel.bounded import Pressure
from sits_executor.batch import Batch
from sits_protos.v1.link_pb2 import BatchHeader
from sits_scheduling.watermarks import Gauge

_NEVER = 1 << 64
_UNRANKED = 1 << 32


class Rank(NamedTuple):
    """Smaller runs first."""

    priority: int
    deadline_unix_ns: int
    arrival: int


def rank(header: BatchHeader, arrival: int, default_priority: int) -> Rank:
    """Priority 1 is the most urgent; 0 means `default_priority`, and if that is 0 too, last.

    Known weakness: a steady stream of urgent batches keeps others waiting until their
    deadline; fairness between tenants is the dispatcher's, which fills this short queue.
    """
    priority = header.priority or default_priority or _UNRANKED
    return Rank(priority, header.earliest_deadline_unix_ns or _NEVER, arrival)


class BatchQueue:
    """`write` refuses when full or closed; `read` waits and returns None once closed and empty.

    `gauge` holds back by samples besides. `written` is called after every accepted batch. Whoever
    would write may run the batch itself instead, in the place of a reader that waits: `lend`.
    """

    def __init__(
        self, capacity: int, default_priority: int = 0, gauge: Gauge | None = None
    ) -> None:
        self._capacity, self._default_priority = capacity, default_priority
        self._gauge = gauge
        self.written: Callable[[], object] = lambda: None
        self.run_here: Callable[[Batch], bool] = lambda _: False
        self.arrivals = 0
        self._idle = self._lent = 0
        self._heap: list[tuple[Rank, Batch]] = []
        self._arrivals = count()
        self._closed = False
        self._readers = 1
        self._ready = threading.Condition()

    def write(self, batch: Batch) -> Pressure:
        with self._ready:
            level = self.level
            if self._closed or level >= 1:
                return Pressure(False, level)
            place = rank(batch.header, next(self._arrivals), self._default_priority)
            heapq.heappush(self._heap, (place, batch))
            self._hold(batch.rows)
            self.arrivals += 1
            self._ready.notify(self._readers)
            pressure = Pressure(True, self.level)
        self.written()
        return pressure

    @property
    def level(self) -> float:
        """0 empty; from 1 on nothing more is taken."""
        level = len(self._heap) / self._capacity
        if self._gauge is None:
            return level
        return max(level, 1.0 if self._gauge.stopped else min(self._gauge.level, 0.999))

    def read(self) -> Batch | None:
        with self._ready:
            self._idle += 1
            self._ready.wait_for(self._has_turn)
            self._idle -= 1
            return self._pop()[1] if self._heap else None

    def lend(self) -> bool:
        """Take the place of one who waits in `read`, until `give_back`: it reads nothing, and is
        not told of the end. False when nobody waits there, or a batch does, or it is closed."""
        with self._ready:
            if self._closed or self._heap or self._idle <= self._lent:
                return False
            self._lent += 1
            self.arrivals += 1
            return True

    def give_back(self) -> None:
        with self._ready:
            self._lent -= 1
            if self._heap or self._closed:
                self._ready.notify_all()

    def _has_turn(self) -> bool:
        return self._idle > self._lent and (self._closed or bool(self._heap))

    def read_only(self, wanted: Callable[[Batch], bool]) -> Batch | None:
        """As `read`, for a reader that takes certain batches only; None once closed and without
        any of them."""
        with self._ready:
            self._readers += 1
            self._ready.wait_for(lambda: self._closed or any(wanted(b) for _, b in self._heap))
            self._readers -= 1
            found = min((entry for entry in self._heap if wanted(entry[1])), default=None)
            if found is None:
                return None
            self._heap.remove(found)
            heapq.heapify(self._heap)
            self._hold(-found[1].rows)
            return found[1]

    def head(self) -> Rank | None:
        """Of what would be taken next. Another reader may be faster."""
        heap = self._heap
        try:
            return heap[0][0]
        except IndexError:
            return None

    def take(self) -> tuple[Rank, Batch] | None:
        """As `read`, without waiting."""
        with self._ready:
            return self._pop() if self._heap else None

    def put_back(self, place: Rank, batch: Batch) -> None:
        """What was taken and cannot run yet; also when closed."""
        with self._ready:
            heapq.heappush(self._heap, (place, batch))
            self._hold(batch.rows)

    def _pop(self) -> tuple[Rank, Batch]:
        place, batch = heapq.heappop(self._heap)
        self._hold(-batch.rows)
        return place, batch

    def _hold(self, rows: int) -> None:
        if self._gauge is not None:
            self._gauge.change(rows)

    def remove(self, chosen: Callable[[Batch], bool]) -> list[Batch]:
        """Take out all waiting batches that are `chosen`."""
        with self._ready:
            taken = [batch for _, batch in self._heap if chosen(batch)]
            self._heap = [entry for entry in self._heap if not chosen(entry[1])]
            heapq.heapify(self._heap)
            self._hold(-sum(batch.rows for batch in taken))
            return taken

    def close(self) -> None:
        """Refuse new batches; those that wait are still read."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()
        self.written()

    @property
    def closed(self) -> bool:
        return self._closed

    def __len__(self) -> int:
        return len(self._heap)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<BatchQueue {len(self)}/{self._capacity} {state}>"
