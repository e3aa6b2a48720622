"""Gives a device's time to the models or tenants that need it, in slices (E6)."""

from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np

from sits_scheduling.columns import Floats, Ints

PERIOD_NS: Final = 100_000_000
WINDOW: Final = 5
MOVED: Final = 0.15
TWICE: Final = 2
WAIT_WEIGHT: Final = 0.7
SPREAD_WEIGHT: Final = 0.3
LEAST_SHARE: Final = 0.02
_STEPS: Final = 41
_FULL: Final = 0.98
"""A share whose load is above this waits without end; the formula is cut there."""


class TimeSlices:
    """Every 100 ms: has the load moved, and which shares would be best for it?

    Rule: loads are averaged over a window of 5 periods. When the average has moved by more
    than 0.15 of the device (in sum over all, halved) from what the shares were made for,
    twice in a row, the shares are computed anew: those that minimise
    0.7 × E[wait] + 0.3 × Var(load), see `best_shares`. They follow the average until the
    window holds nothing from before the move: what it was mixed with would else stay in
    the shares, too little to count as a move of its own.

    Weakness: looks at the device's time only; a model whose memory does not fit beside the
    others needs placement, not slices.
    """

    def __init__(self, count: int) -> None:
        self._window: deque[Floats] = deque(maxlen=WINDOW)
        self._made_for = np.full(count, 1.0 / count)
        self._moved = self._settling = 0
        self.shares = np.full(count, 1.0 / count)

    def __repr__(self) -> str:
        return f"<TimeSlices {np.round(self.shares, 2).tolist()}>"

    def look(self, loads: Sequence[float]) -> bool:
        """One period's load of each, as parts of the device (arrivals × run time). True when
        the shares changed."""
        self._window.append(np.asarray(loads, dtype=np.float64))
        mean: Floats = np.mean(self._window, axis=0)
        moved = float(np.abs(mean - self._made_for).sum()) / 2 > MOVED
        self._moved = self._moved + 1 if moved else 0
        if self._moved >= TWICE:
            self._settling = WINDOW
        if not self._settling:
            return False
        self._settling -= 1
        self._moved, self._made_for = 0, mean
        self.shares = best_shares(mean)
        return True


def best_shares(loads: Floats) -> Floats:
    """Shares of a device that minimise `cost` for these loads.

    Two closed forms bound the answer: Kleinrock's capacity assignment (1964), a share =
    load + spare × √load, minimises the mean wait; shares in proportion to the loads make
    all equally full, which is no spread at all. The answer is searched among the mixtures
    of the two; a test finds none better by a hundredth among thousands of others.
    """
    floor = np.maximum(loads, LEAST_SHARE)
    total = float(floor.sum())
    proportional = floor / total
    if total >= 1.0:
        return proportional  # more than there is: all wait, and equally
    roots = np.sqrt(floor)
    kleinrock = floor + (1.0 - total) * roots / roots.sum()
    mixtures = np.linspace(0.0, 1.0, _STEPS)[:, None]
    shares = mixtures * kleinrock + (1.0 - mixtures) * proportional
    costs = np.array([cost(row, loads) for row in shares])
    best: Floats = shares[int(costs.argmin())]
    return best


def cost(shares: Floats, loads: Floats) -> float:
    """0.7 × mean wait + 0.3 × variance of how full the shares are.

    Waits are in run times of the whole device: a share s with load l is an M/M/1 queue
    that serves at s, so that l / (s (s − l)) is the wait of its arrivals.
    """
    full = np.minimum(loads / shares, _FULL)
    wait = full / (shares * (1.0 - full))
    arrivals = loads / max(1e-12, float(loads.sum()))
    spread = float(np.var(loads / shares))
    return WAIT_WEIGHT * float((arrivals * wait).sum()) + SPREAD_WEIGHT * spread


def whole_shares(shares: Floats, total: int) -> Ints:
    """`total` slices or instances by these shares, largest remainder, at least one each when
    there are enough."""
    least = 1 if total >= len(shares) else 0
    exact = shares / shares.sum() * (total - least * len(shares))
    counts: Ints = np.floor(exact).astype(np.intp) + least
    missing = total - int(counts.sum())
    counts[np.argsort(counts - least - exact, kind="stable")[:missing]] += 1
    return counts
