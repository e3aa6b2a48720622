"""Calls functions at given moments, on one thread."""

import heapq
import threading
from collections.abc import Callable
from itertools import count

from sits_core.clock import now_ns


class Timer:
    """`at` may be called from any thread; due calls run one after the other.

    Calls cannot be taken back: a callback looks whether it still has something to do.
    """

    def __init__(self, name: str) -> None:
        self._calls: list[tuple[int, int, Callable[[], object]]] = []
        self._order = count()
        self._changed = threading.Condition()
        self._running = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._running = True
        self._thread.start()

    def stop(self) -> None:
        with self._changed:
            self._running = False
            self._changed.notify()
        self._thread.join(2.0)

    def at(self, unix_ns: int, call: Callable[[], object]) -> None:
        with self._changed:
            heapq.heappush(self._calls, (unix_ns, next(self._order), call))
            if self._calls[0][0] == unix_ns:
                self._changed.notify()

    def __len__(self) -> int:
        return len(self._calls)

    def _run(self) -> None:
        while (call := self._next()) is not None:
            call()

    def _next(self) -> Callable[[], object] | None:
        with self._changed:
            while self._running:
                wait_ns = self._calls[0][0] - now_ns() if self._calls else None
                if wait_ns is not None and wait_ns <= 0:
                    return heapq.heappop(self._calls)[2]
                self._changed.wait(None if wait_ns is None else wait_ns / 1e9)
            return None
