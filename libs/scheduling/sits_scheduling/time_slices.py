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
_PARTS: Final = (0.1, 0.03, 0.01)
"""Of what the loads leave free, moved at a time; coarse to fine."""
_MOST_MOVES: Final = 20
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
    all equally full, which is no spread at all. The best mixture of the two is found on a
    line and improved by moving small parts from one to another while that pays. Weakness:
    a local optimum; a test finds none better by a hundredth among thousands of others.
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
    best: Floats = shares[int(cost(shares, loads).argmin())]
    for part in _PARTS:
        best = _improved(best, loads, part * (1.0 - total))
    return best


def cost(shares: Floats, loads: Floats) -> Floats:
    """0.7 × mean wait + 0.3 × variance of how full the shares are; of each row of `shares`.

    Waits are in run times of the whole device: a share s with load l is an M/M/1 queue
    that serves at s, so that l / (s (s − l)) is the wait of its arrivals.
    """
    full = np.minimum(loads / shares, _FULL)
    wait = full / (shares * (1.0 - full))
    arrivals = loads / max(1e-12, float(loads.sum()))
    spread: Floats = np.var(loads / shares, axis=-1)
    mean_wait: Floats = (arrivals * wait).sum(axis=-1)
    return WAIT_WEIGHT * mean_wait + SPREAD_WEIGHT * spread


def _improved(shares: Floats, loads: Floats, step: float) -> Floats:
    """Move `step` from one to another as long as the best such move lowers the cost."""
    moves = step * (np.eye(len(shares))[:, None] - np.eye(len(shares))).reshape(-1, len(shares))
    for _ in range(_MOST_MOVES):
        tried = shares + moves
        costs = np.where(tried.min(axis=1) >= LEAST_SHARE / 2, cost(tried, loads), np.inf)
        if costs.min() >= cost(shares, loads):
            break
        shares = tried[int(costs.argmin())]
    return shares


def whole_shares(shares: Floats, total: int) -> Ints:
    """`total` slices or instances by these shares, largest remainder, at least one each when
    there are enough."""
    least = 1 if total >= len(shares) else 0
    exact = shares / shares.sum() * (total - least * len(shares))
    counts: Ints = np.floor(exact).astype(np.intp) + least
    missing = total - int(counts.sum())
    counts[np.argsort(counts - least - exact, kind="stable")[:missing]] += 1
    return counts
