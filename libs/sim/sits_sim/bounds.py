"""Holds the promise of fair queueing against what happens: is anything served later than the
bound said when it came?"""

from collections.abc import Iterable

from sits_scheduling.batching import BatchQueue
from sits_scheduling.entry import Entry


class BoundWatch:
    """For one queue. `worst` is the largest share of its bound that a request has used up,
    above 1 the promise was broken; `largest_cost` is the largest bound that was given."""

    def __init__(self, queue: BatchQueue[int]) -> None:
        self._queue = queue
        self._served = 0.0
        self._promised: dict[int, tuple[float, float, float]] = {}
        self.worst = self.largest_cost = 0.0

    def __repr__(self) -> str:
        return f"<BoundWatch worst {self.worst:.3f} of its bound>"

    def coming(self, entry: Entry[int]) -> None:
        """Just before it queues."""
        bound = self._queue.cost_bound(entry.tenant, entry.cost, entry.level)
        self.largest_cost = max(self.largest_cost, bound)
        self._promised[entry.item] = bound, self._served, entry.cost

    def taken(self, requests: Iterable[int]) -> None:
        """In the order in which they left the queue."""
        for request in requests:
            bound, served_then, cost = self._promised.pop(request)
            before = self._served - served_then
            if before > 0:
                self.worst = max(self.worst, before / bound if bound else float("inf"))
            self._served += cost

    def dropped(self, request: int) -> None:
        del self._promised[request]
