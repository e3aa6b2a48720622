"""An amount that several models share, such as bytes of pinned memory."""

import threading


class Budget:
    """`limit` 0 = as much as there is."""

    def __init__(self, limit: int = 0) -> None:
        self._limit, self.used = limit, 0
        self._lock = threading.Lock()

    def take(self, amount: int, *, at_any_rate: bool = False) -> bool:
        """False when that would be more than there is. `at_any_rate`: also then take it, since
        without it nothing would ever run."""
        with self._lock:
            if self._limit and self.used + amount > self._limit and not at_any_rate:
                return False
            self.used += amount
            return True

    def give(self, amount: int) -> None:
        with self._lock:
            self.used -= amount

    def __repr__(self) -> str:
        return f"<Budget {self.used}/{self._limit or 'unlimited'}>"
