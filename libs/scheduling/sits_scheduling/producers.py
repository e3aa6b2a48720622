"""How fast each producer may fill a shared queue (P5)."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from sits_scheduling.watermarks import Watermarks


class RatePolicy(Protocol):
    """How many items a producer may put in now. Asking changes nothing."""

    @property
    def name(self) -> str: ...

    def quota(self, producer: str, now_ns: int) -> int: ...

    def level(self, held: int) -> None:
        """The queue now holds so many items."""
        ...


class FixedSlices:
    """Producers take turns in slices of equal length; in its slice a producer may put in
    `burst` items at a time, outside of it none.

    Weakness: a slice that its producer does not use is lost, and a burst at the wrong
    moment waits a whole round.
    """

    name = "fixed_slices"

    def __init__(self, producers: Sequence[str], slice_ns: int, burst: int) -> None:
        self._turns = {producer: turn for turn, producer in enumerate(producers)}
        self._slice_ns, self._burst = slice_ns, burst

    def quota(self, producer: str, now_ns: int) -> int:
        turn = self._turns.get(producer)
        mine = turn is not None and (now_ns // self._slice_ns) % len(self._turns) == turn
        return self._burst if mine else 0

    def level(self, held: int) -> None:
        """Slices do not depend on it."""


_SHRINK: Final = 0.5


class AdaptiveQuota:
    """Every producer may have a share of the room that the watermarks leave.

    Rule: additive increase, multiplicative decrease (Chiu and Jain 1989): each time the queue
    is seen below its low mark the quota grows by one, at or above the high mark it halves,
    between the two it stays. It converges to what the consumer drains, with equal shares.
    Weakness: reacts one look late; the queue's capacity must lie above the high mark.
    """

    name = "adaptive_quota"

    def __init__(self, marks: Watermarks, producers: int) -> None:
        self._marks, self._most = marks, float(max(1, marks.high))
        self._quota = max(1.0, marks.high / max(1, producers))

    def quota(self, producer: str, now_ns: int) -> int:
        return int(self._quota)

    def level(self, held: int) -> None:
        if held >= self._marks.high:
            self._quota = max(1.0, self._quota * _SHRINK)
        elif held < self._marks.low:
            self._quota = min(self._most, self._quota + 1.0)


PolicyFactory = Callable[[Sequence[str], Watermarks], RatePolicy]

SLICE_NS: Final = 1_000_000

POLICIES: Final[dict[str, PolicyFactory]] = {
    "fixed_slices": lambda producers, marks: FixedSlices(producers, SLICE_NS, marks.high),
    "adaptive_quota": lambda producers, marks: AdaptiveQuota(marks, len(producers)),
}
"""Both policies by name."""
