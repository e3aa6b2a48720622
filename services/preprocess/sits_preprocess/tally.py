"""How many answers a stream still owes, and what ends it once it owes none."""

import threading
from collections.abc import Callable


class Tally:
    """Safe from any thread. `over` is True once the stream has ended, for whatever reason."""

    def __init__(self) -> None:
        self._owed = 0
        self._closing: Callable[[], None] | None = None
        self._lock = threading.Lock()
        self.over = False

    def owe(self, answers: int = 1) -> bool:
        """False when the stream is over: nobody waits for these answers."""
        with self._lock:
            if not self.over:
                self._owed += answers
            return not self.over

    def settle(self, answers: int = 1) -> None:
        with self._lock:
            self._owed -= answers
        self._close_if_settled()

    def close(self, how: Callable[[], None]) -> None:
        """End the stream by `how` as soon as nothing is owed. The first way asked for wins."""
        with self._lock:
            self._closing = self._closing or how
        self._close_if_settled()

    def abandon(self) -> None:
        with self._lock:
            self.over = True

    def _close_if_settled(self) -> None:
        with self._lock:
            how = self._closing
            if self.over or how is None or self._owed > 0:
                return
            self.over = True
        how()

    def __repr__(self) -> str:
        return f"<Tally owes {self._owed}{' over' if self.over else ''}>"
