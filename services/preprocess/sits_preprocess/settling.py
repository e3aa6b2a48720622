"""Answers are given first and accounted then; who asks for figures waits for what was given."""

import threading
from itertools import count
from typing import Final

PATIENCE_S: Final = 1.0


class Settling:
    """Safe from any thread. What is between `begin` and `end` is not in the figures yet; `wait`
    returns when all that had begun before has ended, so that a client finds its own requests
    counted. Costs nothing while nobody waits."""

    def __init__(self) -> None:
        self._marks = count()
        self._begun: set[int] = set()
        self._waiting = 0
        self._ended = threading.Condition()

    def begin(self) -> int:
        mark = next(self._marks)
        self._begun.add(mark)
        return mark

    def end(self, mark: int) -> None:
        self._begun.discard(mark)
        # Whoever waits says so before looking at what has begun.
        if self._waiting:
            with self._ended:
                self._ended.notify_all()

    def wait(self) -> None:
        with self._ended:
            self._waiting += 1
            begun = self._begun.copy()
            self._ended.wait_for(lambda: begun.isdisjoint(self._begun), PATIENCE_S)
            self._waiting -= 1

    def __repr__(self) -> str:
        return f"<Settling {len(self._begun)} begun, {self._waiting} wait>"
