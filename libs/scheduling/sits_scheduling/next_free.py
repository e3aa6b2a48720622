"""When an instance will be free, from the runs that came back."""

from typing import Final

from sits_scheduling.batching import Capacity
from sits_scheduling.service_times import LinearFit

SMOOTHING: Final = 0.2
SLOWEST, FASTEST = 4.0, 0.25
"""One absurd run, times the one that was foretold."""
ENOUGH: Final = 20
"""Runs until the line is believed; before, small batches say little of large ones."""


class NextFree:
    """The next instance is expected to be free one run after the oldest unanswered batch
    left, or after the last answer, whichever is later. A run's time follows from its rows by a
    line through those that came back, times how far the last ones were from it (moving average):
    a small batch behind a large one is back soon, and the next one must have left before. Until
    `ENOUGH` came back their moving average has to do. A run of no rows, which failed, teaches
    nothing.

    Known weakness: with several instances that is an estimate for the earliest one only.
    """

    def __init__(self) -> None:
        self._run_ns = self._last_result_ns = 0
        self._line, self._pace, self._runs = LinearFit(), 1.0, 0

    def __repr__(self) -> str:
        return f"<NextFree runs of {self._run_ns / 1e6:.3f} ms>"

    def ran(self, run_ns: int, rows: int, now_ns: int) -> None:
        """A batch came back, of which `rows` ran; `run_ns` 0 = it did not run."""
        if run_ns > 0 and rows > 0:
            known = self._run_ns or run_ns
            self._run_ns = int(known + SMOOTHING * (run_ns - known))
            if foretold := self._line.at(rows):
                pace = min(SLOWEST, max(FASTEST, run_ns / foretold))
                self._pace += SMOOTHING * (pace - self._pace)
            self._line.add(rows, run_ns)
            self._runs += 1
        self._last_result_ns = now_ns

    def capacity(
        self, room: int, idle: int, oldest_ns: int, oldest_rows: int, least_run_ns: int
    ) -> Capacity:
        """`oldest_ns`: when the oldest unanswered batch left, of `oldest_rows`. Not told where
        runs are shorter than `least_run_ns`."""
        if self._run_ns < least_run_ns or self._run_ns == 0 or idle > 0:
            return Capacity(room, idle, 0, self._run_ns)
        run_ns = self._run_ns
        if self._runs >= ENOUGH:
            run_ns = int(self._line.at(oldest_rows) * self._pace)
        free_ns = max(oldest_ns, self._last_result_ns) + run_ns
        return Capacity(room, idle, free_ns, self._run_ns)
