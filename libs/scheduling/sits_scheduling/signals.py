"""What governance looks at, and from which value on it worries."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple


class Level(IntEnum):
    """What is done about it, each level with all below it."""

    NORMAL = 0
    SCALE_OUT = 1
    REPLACE = 2
    DEGRADE = 3


class Sample(NamedTuple):
    """One look at the mesh, taken at even intervals.

    `collective_failure`, `communication_share`: parts of all collectives and of the time.
    `memory_spread`: fullest less emptiest device, as part of a device's memory;
    `largest_block`: the part of free memory that is in one piece, on the worst device.
    `load_over_knee`: load over the load from which p95 rises steeply (`knee`), both of the
    capacity there is now; load is what is asked for, refused or not.
    """

    queue_median_ms: float = 0.0
    collective_failure: float = 0.0
    memory_spread: float = 0.0
    largest_block: float = 1.0
    communication_share: float = 0.0
    load_over_knee: float = 0.0


SMALL_BLOCK: Final = 0.25
"""Free memory counts as fragmented when no more than this part of it is in one piece."""


def _spread(sample: Sample) -> float:
    """Uneven memory matters once what is free is in pieces too small to use."""
    return sample.memory_spread if sample.largest_block <= SMALL_BLOCK else 0.0


SIGNALS: Final[dict[str, Callable[[Sample], float]]] = {
    "queue_median_ms": lambda sample: sample.queue_median_ms,
    "collective_failure": lambda sample: sample.collective_failure,
    "memory_spread": _spread,
    "communication_share": lambda sample: sample.communication_share,
    "load_over_knee": lambda sample: sample.load_over_knee,
}


@dataclass(frozen=True, slots=True)
class Rule:
    """Above `enter` in `needed` of the last three samples the level is due; it is over
    after enough samples below `leave`, none of them with the signal `held_by` above 1."""

    signal: str
    level: Level
    enter: float
    needed: int = 2
    held_by: str = ""

    @property
    def leave(self) -> float:
        return self.enter * LEAVE_PART


LEAVE_PART: Final = 0.8
"""The gap between entering and leaving: a signal that hovers at its limit changes nothing."""

_DEMAND: Final = "load_over_knee"
"""A queue is also short because work is shed or served cheaply; it is over only when what is
asked for, shed or not, is less than the mesh can do without that."""

RULES: Final = (
    Rule("queue_median_ms", Level.SCALE_OUT, 120.0, held_by=_DEMAND),
    Rule("queue_median_ms", Level.REPLACE, 250.0, held_by=_DEMAND),
    Rule("queue_median_ms", Level.DEGRADE, 500.0, held_by=_DEMAND),
    Rule("collective_failure", Level.SCALE_OUT, 0.0002),
    Rule("collective_failure", Level.REPLACE, 0.0015),
    Rule("collective_failure", Level.DEGRADE, 0.008),
    Rule("memory_spread", Level.REPLACE, 0.32, needed=3),
    Rule("communication_share", Level.REPLACE, 0.41),
    Rule("load_over_knee", Level.SCALE_OUT, 1.0),
)
"""The table of D6."""

_WINDOW: Final = 3
LEAVE_SAMPLES: Final = 5
_SOON: Final = 30
_LONGEST: Final = 40


class Watch:
    """One rule's state over the samples.

    Entering takes `needed` of three samples, so that a single spike does nothing and an
    alternating signal does not escape. Leaving takes `LEAVE_SAMPLES` in a row below the
    lower limit, twice as many each time the signal came back within 30 samples of the last
    leave: a signal that returns because relief was taken away keeps its relief longer and
    longer instead of flapping. Weakness: one that returns for another reason does as well.
    """

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.active = False
        self.value = 0.0
        self._above: deque[bool] = deque(maxlen=_WINDOW)
        self._below = 0
        self._patience = LEAVE_SAMPLES
        self._since_left = _SOON

    def __repr__(self) -> str:
        state = "active" if self.active else "quiet"
        return f"<Watch {self.rule.signal} > {self.rule.enter:g} {state} at {self.value:g}>"

    @property
    def above(self) -> bool:
        """In the last sample."""
        return self.value > self.rule.enter

    def look(self, sample: Sample) -> bool:
        """True when `active` changed."""
        self.value = SIGNALS[self.rule.signal](sample)
        self._above.append(self.above)
        if not self.active:
            return self._may_enter()
        held = self.rule.held_by != "" and SIGNALS[self.rule.held_by](sample) > 1.0
        return self._may_leave(self.value < self.rule.leave and not held)

    def _may_enter(self) -> bool:
        self._since_left += 1
        if sum(self._above) < self.rule.needed:
            return False
        soon = self._since_left < _SOON
        self._patience = min(_LONGEST, 2 * self._patience) if soon else LEAVE_SAMPLES
        self.active, self._below = True, 0
        return True

    def _may_leave(self, calm: bool) -> bool:
        self._below = self._below + 1 if calm else 0
        if self._below < self._patience:
            return False
        self.active, self._since_left = False, 0
        self._above.clear()
        return True
