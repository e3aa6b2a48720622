"""One clock: monotonic nanoseconds inside a process, Unix nanoseconds on the wire."""

import time
from collections.abc import Callable
from typing import NamedTuple

_TRIES = 32


def epoch_offset_ns(
    wall_ns: Callable[[], int] = time.time_ns, monotonic_ns: Callable[[], int] = time.monotonic_ns
) -> int:
    """What to add to a monotonic reading to get Unix time.

    From the pair of readings that lay closest together: a process that is interrupted
    between the two would for ever disagree with its neighbours by as long as that took.
    """
    best_gap, best_offset = None, 0
    for _ in range(_TRIES):
        before, wall, after = monotonic_ns(), wall_ns(), monotonic_ns()
        if best_gap is None or after - before < best_gap:
            best_gap, best_offset = after - before, wall - (before + after) // 2
    return best_offset


# The wall clock may jump; what one process measures never should. Stamps are
# monotonic readings moved to the Unix epoch once, at import.
_EPOCH_OFFSET_NS = epoch_offset_ns()


def now_ns() -> int:
    """Unix nanoseconds that never run backwards within a process."""
    return time.monotonic_ns() + _EPOCH_OFFSET_NS


class Deadline(NamedTuple):
    """The instant after which nobody waits for an answer. Made once, at the edge."""

    unix_ns: int

    @classmethod
    def after(cls, seconds: float, now: int | None = None) -> "Deadline":
        """`seconds` from `now` (Unix ns). A year is as good as for ever; less than 0 is 0."""
        bounded = min(max(0.0, seconds), 31_536_000.0)  # in this order NaN is 0 too
        return cls((now_ns() if now is None else now) + int(bounded * 1e9))

    def left_s(self, now: int | None = None) -> float:
        """Seconds left, never below 0."""
        return max(0, self.unix_ns - (now_ns() if now is None else now)) / 1e9

    def passed(self, now: int | None = None) -> bool:
        return self.unix_ns <= (now_ns() if now is None else now)


def earliest(first: Deadline | None, second: Deadline | None) -> Deadline | None:
    if first is None or second is None:
        return first or second
    return min(first, second)
