"""How many runs of gangs fail (D6)."""

from collections import deque
from typing import Final

WINDOW_NS: Final = 60_000_000_000
BUCKET_NS: Final = 1_000_000_000
LEAST_FAILURES: Final = 2
"""A single failure says nothing about a part: of a hundred runs it would be one per cent."""


class Collectives:
    """The part of the last minute's runs that failed. A run is a batch on all GPUs of a gang, and
    fails when one of them does: the others cannot finish their sums.

    Weakness: what a gang that fails does not answer any more counts only when its time is up.
    """

    def __init__(self) -> None:
        self._buckets: deque[tuple[int, int, int]] = deque()

    def ran(self, runs: int, failures: int, now: int) -> None:
        """So many runs ended, so many of them failed."""
        start = now - now % BUCKET_NS
        if self._buckets and self._buckets[-1][0] >= start:
            start, before, failed = self._buckets.pop()
            runs, failures = runs + before, failures + failed
        self._buckets.append((start, runs, failures))
        self._forget(now)

    def failure(self, now: int) -> float:
        """0 while fewer than `LEAST_FAILURES` failed."""
        self._forget(now)
        failures = sum(failed for _, _, failed in self._buckets)
        if failures < LEAST_FAILURES:
            return 0.0
        return failures / sum(runs for _, runs, _ in self._buckets)

    def _forget(self, now: int) -> None:
        while self._buckets and self._buckets[0][0] <= now - WINDOW_NS:
            self._buckets.popleft()

    def __repr__(self) -> str:
        return f"<Collectives {sum(runs for _, runs, _ in self._buckets)} in the last minute>"
