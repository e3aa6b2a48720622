"""The work reserved at each position of the table, and how long a new batch would wait there."""

from typing import Final

import numpy as np

from sits_scheduling.columns import Floats, Ints, grown

UNKNOWN_COST_NS: Final = 1e6
"""What a batch counts while nothing is known of its run time."""


class Loads:
    """`batches` and `rows` of all models, and the predicted time they take."""

    def __init__(self) -> None:
        self.batches = np.zeros(0)
        self.rows = np.zeros(0)
        self._backlog_ns = np.zeros(0)
        self._since_ns = np.zeros(0)

    def grow(self, size: int) -> None:
        self.batches, self.rows = grown(self.batches, size), grown(self.rows, size)
        self._backlog_ns = grown(self._backlog_ns, size)
        self._since_ns = grown(self._since_ns, size)

    def clear(self, position: int) -> None:
        self.batches[position] = self.rows[position] = self._backlog_ns[position] = 0

    def begin(self, position: int, rows: int, cost_ns: float, now_ns: int) -> None:
        """A batch was sent there."""
        if not self.batches[position]:
            self._since_ns[position] = now_ns
        self._change(position, 1, rows, cost_ns)

    def end(self, position: int, rows: int, cost_ns: float, now_ns: int) -> None:
        """It came back, or never will; the next one's progress counts from now."""
        self._since_ns[position] = max(self._since_ns[position], now_ns)
        self._change(position, -1, -rows, -cost_ns)

    def wait_ns(self, at: Ints | slice, parallel: Floats, now_ns: int) -> Floats:
        """Reserved time a parallel run, less what the running batches have done so far.

        Of what other dispatchers sent there it knows only that `parallel` is our part. Weakness:
        counts one batch's progress for all that run in parallel.
        """
        batches = self.batches[at]
        wait: Floats = self._backlog_ns[at] / parallel
        if now_ns:
            longest = self._backlog_ns[at] / np.maximum(batches, 1.0)
            done = np.maximum(now_ns - self._since_ns[at], 0.0)
            wait = wait - np.minimum(done, longest)
        wait[batches < parallel] = 0.0
        return wait

    def _change(self, position: int, batches: int, rows: int, cost_ns: float) -> None:
        self.batches[position] += batches
        self.rows[position] += rows
        left = self._backlog_ns[position] + cost_ns
        # An empty executor has no backlog, whatever rounding left.
        self._backlog_ns[position] = left if self.batches[position] else 0.0
