"""Repeating a copy until its time can be told."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Final, NamedTuple, Protocol

from sits_topology.probe.plan import Path

WARM_UPS: Final = 3
REPETITIONS: Final = 15
BACK_TO_BACK: Final = 4
"""Copies between two stamps, so that the stamps cost nothing beside them; a latency is that
of a single one."""

Timed = Callable[[int], float]
"""Runs so many copies one after the other; seconds that they took, all together."""


class Copier(Protocol):
    def open(self, path: Path, most_bytes: int) -> "Opened":
        """Memory at both ends for copies up to `most_bytes`."""
        ...


class Opened(Protocol):
    def copies(self, size_bytes: int) -> Timed: ...

    def close(self) -> None: ...


class Timing(NamedTuple):
    """One copy: median seconds, and the middle half's width over the median."""

    seconds: float
    spread: float


Gang = tuple[int, ...]
"""Numbers of CUDA."""


class AllReduce(NamedTuple):
    """Times are of the slowest member."""

    gang: Gang
    size_bytes: int
    timing: Timing

    @property
    def bus_gbps(self) -> float:
        """What each link of a ring carries: 2 (n - 1) / n of the size."""
        count = len(self.gang)
        return 2 * (count - 1) / count * self.size_bytes / self.timing.seconds / 1e9


class Copied(NamedTuple):
    """One path with one size."""

    path: Path
    size_bytes: int
    timing: Timing

    @property
    def gbps(self) -> float:
        return self.size_bytes / self.timing.seconds / 1e9


def measure(timed: Timed, count: int = BACK_TO_BACK, repetitions: int = REPETITIONS) -> Timing:
    """Warm up, then the median of `repetitions` samples of `count` copies each."""
    for _ in range(WARM_UPS):
        timed(count)
    return timing_of([timed(count) / count for _ in range(repetitions)])


def timing_of(samples: Sequence[float]) -> Timing:
    ordered = sorted(samples)
    middle = median(ordered)
    quarter = len(ordered) // 4
    width = ordered[-1 - quarter] - ordered[quarter]
    return Timing(middle, width / middle if middle else 0.0)
