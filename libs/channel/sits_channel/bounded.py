"""A bounded queue between threads whose writers never block."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Pressure(NamedTuple):
    """Answer to a write: taken or not, and how full the channel is, 0.0 to 1.0."""

    accepted: bool
    level: float


class BoundedChannel(Generic[T]):
    """First in, first out. `write` refuses when full; `read` waits.

    With `weigh` the sum of weights is bounded by `max_weight` as well; an item heavier
    than that is taken only while nothing else waits.

    Weakness: one lock; fine for batches, too slow for single small messages.
    """

    def __init__(
        self, capacity: int, weigh: Callable[[T], int] = lambda _: 0, max_weight: int = 1
    ) -> None:
        self._items: deque[T] = deque()
        self._capacity, self._weigh, self._max_weight = capacity, weigh, max_weight
        self._weight = 0
        self._closed = False
        self._ready = threading.Condition()

    def write(self, item: T) -> Pressure:
        with self._ready:
            if self._closed or not self._has_room(weight := self._weigh(item)):
                return Pressure(False, self._level())
            self._items.append(item)
            self._weight += weight
            self._ready.notify()
            return Pressure(True, self._level())

    def read(self, timeout_s: float | None = None) -> T | None:
        """The oldest item, or None once closed and empty, or when the time is up."""
        with self._ready:
            self._ready.wait_for(lambda: self._items or self._closed, timeout_s)
            if not self._items:
                return None
            item = self._items.popleft()
            self._weight -= self._weigh(item)
            return item

    def close(self, *, discard: bool = False) -> None:
        with self._ready:
            self._closed = True
            if discard:
                self._items.clear()
                self._weight = 0
            self._ready.notify_all()

    @property
    def closed(self) -> bool:
        return self._closed

    def _has_room(self, weight: int) -> bool:
        if len(self._items) >= self._capacity:
            return False
        return self._weight + weight <= self._max_weight or not self._items

    def _level(self) -> float:
        by_weight = min(1.0, self._weight / self._max_weight)
        return max(len(self._items) / self._capacity, by_weight)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<BoundedChannel {len(self._items)}/{self._capacity} {state}>"
