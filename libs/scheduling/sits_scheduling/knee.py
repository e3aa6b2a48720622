"""The load from which the tail rises steeply, learnt from what was measured."""

from statistics import median
from typing import Final

import numpy as np

BUCKETS: Final = 24
"""Of 5 % of nominal capacity each, up to 120 %."""
_SMOOTHING: Final = 0.1
_LEAST: Final = 3
DEFAULT_KNEE: Final = 0.9
"""Until enough is known."""


class Knee:
    """p95 by load, in buckets; the knee is where it leaves the calm level by `factor`.

    Rule: calm is the median p95 of the loads below the middle of those seen; the knee is
    the lowest load from which on p95 is above `factor` × calm. Weakness: needs to have
    seen loads on both sides; a p95 that rises slowly all the way has no knee, and the
    default stands in.
    """

    def __init__(self, factor: float = 2.0) -> None:
        self._factor = factor
        self._p95 = np.full(BUCKETS, np.nan)
        self._seen = np.zeros(BUCKETS, dtype=np.int64)

    def __repr__(self) -> str:
        return f"<Knee at {self.load():.2f}>"

    def observe(self, load: float, p95_ms: float) -> None:
        """`load`: offered over nominal capacity while this p95 was measured."""
        bucket = min(BUCKETS - 1, max(0, int(load * 20)))
        known = self._p95[bucket]
        self._p95[bucket] = p95_ms if np.isnan(known) else known + _SMOOTHING * (p95_ms - known)
        self._seen[bucket] += 1

    def load(self) -> float:
        known = np.flatnonzero(self._seen >= _LEAST)
        if len(known) < 2 * _LEAST:
            return DEFAULT_KNEE
        p95 = self._p95[known]
        steep = p95 > self._factor * median(p95[: len(known) // 2].tolist())
        if not steep[-1]:
            return DEFAULT_KNEE
        first = len(steep) - int(np.argmin(steep[::-1])) if not steep.all() else 0
        return float(known[first]) / 20

    def over(self, load: float) -> float:
        """The signal `load_over_knee`."""
        return load / self.load()
