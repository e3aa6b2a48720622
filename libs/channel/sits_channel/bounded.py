"""A bounded queue between threads whose writers never block."""

import threading
from collections import deque
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Pressure(NamedTuple):
    """Answer to a write: taken or not, and how full the channel is, 0.0 to 1.0."""

    accepted: bool
    level: float


class BoundedChannel(Generic[T]):
    """First in, first out. `write` refuses when full; `read` waits.

    Weakness: one lock; fine for batches, too slow for single small messages.
    """

    def __init__(self, capacity: int) -> None:
        self._items: deque[T] = deque()
        self._capacity = capacity
        self._closed = False
        self._ready = threading.Condition()

    def write(self, item: T) -> Pressure:
        with self._ready:
            level = len(self._items) / self._capacity
            if self._closed or len(self._items) >= self._capacity:
                return Pressure(False, level)
            self._items.append(item)
            self._ready.notify()
            return Pressure(True, len(self._items) / self._capacity)

    def read(self, timeout_s: float | None = None) -> T | None:
        """The oldest item, or None once closed and empty, or when the time is up."""
        with self._ready:
            self._ready.wait_for(lambda: self._items or self._closed, timeout_s)
            return self._items.popleft() if self._items else None

    def close(self, *, discard: bool = False) -> None:
        with self._ready:
            self._closed = True
            if discard:
                self._items.clear()
            self._ready.notify_all()

    @property
    def closed(self) -> bool:
        return self._closed

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<BoundedChannel {len(self._items)}/{self._capacity} {state}>"
