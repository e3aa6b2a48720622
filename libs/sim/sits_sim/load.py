"""Load shapes of the load kit, as times and factors. Pure: NumPy only, seeds passed in.

Shared by the simulator and by load generators. Times are seconds from the start, ascending.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

TAIL_SHARE: Final = 0.05
TAIL_MU: Final = 1.2
TAIL_SIGMA: Final = 0.8


def poisson(rate_per_s: float, duration_s: float, rng: np.random.Generator) -> Floats:
    """Arrivals of many independent callers."""
    count = rng.poisson(rate_per_s * duration_s)
    return np.sort(rng.uniform(0.0, duration_s, count))


def long_tail(count: int, rng: np.random.Generator) -> Floats:
    """How much larger than usual each request is: log-normal (μ 1.2, σ 0.8) for 5 % of them,
    never below 1, and 1 for all others."""
    factors = np.ones(count)
    tail = rng.random(count) < TAIL_SHARE
    drawn = rng.lognormal(TAIL_MU, TAIL_SIGMA, int(tail.sum()))
    factors[tail] = np.maximum(1.0, drawn)
    return factors


@dataclass(frozen=True, slots=True)
class Burst:
    """A rate that is `factor` times its base for the first `length_s` of every `period_s`."""

    factor: float = 5.0
    length_s: float = 3.0
    period_s: float = 15.0

    @property
    def mean(self) -> float:
        """Mean rate in units of the base."""
        return 1.0 + (self.factor - 1.0) * self.length_s / self.period_s

    @property
    def peak(self) -> float:
        """Rate inside a burst in units of the mean."""
        return self.factor / self.mean

    def warp(self, steady_s: Floats) -> Floats:
        """Move arrivals of a steady process so that they follow the shape at the same mean
        rate. Whole periods keep their arrivals, so that the mean is exact."""
        whole, inside = np.divmod(steady_s, self.period_s)
        dense_s = self.length_s * self.peak
        in_burst = inside < dense_s
        base = 1.0 / self.mean
        late = self.length_s + (inside - dense_s) / base
        warped: Floats = whole * self.period_s + np.where(in_burst, inside / self.peak, late)
        return warped

    def inside(self, at_s: Floats) -> npt.NDArray[np.bool_]:
        """Which moments lie in a burst."""
        found: npt.NDArray[np.bool_] = (at_s % self.period_s) < self.length_s
        return found


@dataclass(frozen=True, slots=True)
class Stream:
    """Arrivals of one kind of caller; `tenant` is an index of the owner's choice."""

    at_s: Floats
    tenant: Ints


def noisy_neighbour(
    rates_per_s: Floats,
    noisy: int,
    duration_s: float,
    rng: np.random.Generator,
    burst: Burst | None = None,
) -> Stream:
    """One tenant of several comes in bursts, the others steadily; rates are means."""
    shape = burst or Burst()
    parts = [poisson(float(rate), duration_s, rng) for rate in rates_per_s]
    parts[noisy] = shape.warp(parts[noisy])
    return merged(parts)


def merged(parts: list[Floats]) -> Stream:
    """All arrivals in order, with the index of the part each came from."""
    at_s = np.concatenate(parts)
    tenant = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    order = np.argsort(at_s, kind="stable")
    return Stream(at_s[order], tenant[order])


def replay(
    gaps_s: Floats, rate_per_s: float, duration_s: float, copies: int, rng: np.random.Generator
) -> tuple[Floats, Ints]:
    """Arrivals of a recorded trace at another rate, and the row of the trace each replays.

    `copies` replays run at once, each from a random moment of the trace on and each
    compressed in time so that together they reach `rate_per_s`. Few copies keep the trace's
    bursts, many make the sum steadier, as more callers do. Traces are read in a circle.
    """
    recorded = np.cumsum(gaps_s)
    span_s = float(recorded[-1])
    squeeze = rate_per_s * span_s / (len(gaps_s) * copies)
    parts = [_one_replay(recorded, duration_s * squeeze, rng) for _ in range(copies)]
    at_s = np.concatenate([at for at, _ in parts]) / squeeze
    rows = np.concatenate([row for _, row in parts])
    order = np.argsort(at_s, kind="stable")
    return at_s[order], rows[order]


def _one_replay(
    recorded_s: Floats, length_s: float, rng: np.random.Generator
) -> tuple[Floats, Ints]:
    span_s = float(recorded_s[-1])
    start_s = float(rng.uniform(0.0, span_s))
    rounds = int(np.ceil((start_s + length_s) / span_s)) + 1
    unrolled = (recorded_s[None, :] + span_s * np.arange(rounds)[:, None]).ravel()
    first, last = np.searchsorted(unrolled, [start_s, start_s + length_s])
    return unrolled[first:last] - start_s, np.arange(first, last) % len(recorded_s)
