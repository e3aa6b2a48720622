"""A thread that is handed items, and takes those that wait together."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import structlog

log = structlog.get_logger()

T = TypeVar("T")

STOP_TIMEOUT_S = 1.0


class Worker(Generic[T]):
    """`work` gets at most `at_once` items; at most `limit` wait. What it raises is logged."""

    def __init__(
        self, name: str, work: Callable[[Sequence[T]], None], limit: int, at_once: int
    ) -> None:
        self._work, self._limit, self._at_once = work, limit, at_once
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self._running = True
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns within a second, even while `work` hangs."""
        with self._changed:
            self._running = False
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT_S)

    def put(self, items: Sequence[T]) -> bool:
        """False, and none of them is taken, when too many wait. Never blocks."""
        with self._changed:
            if len(self._items) + len(items) > self._limit or not self._running:
                return False
            self._items.extend(items)
            self._changed.notify()
            return True

    def _run(self) -> None:
        while items := self._take():
            try:
                self._work(items)
            except Exception:  # it must outlive whatever goes wrong with one of them
                log.exception("worker.failed", worker=self._thread.name)

    def _take(self) -> list[T]:
        with self._changed:
            while self._running and not self._items:
                self._changed.wait()
            count = min(len(self._items), self._at_once) if self._running else 0
            return [self._items.popleft() for _ in range(count)]

    def __repr__(self) -> str:
        return f"<Worker {self._thread.name} {len(self._items)} of {self._limit} wait>"
