"""From signals to levels to actions: scale out, re-place, degrade; each undone when it is over."""

from collections import deque
from typing import Final, NamedTuple

from sits_scheduling.signals import RULES, Level, Rule, Sample, Watch
from sits_scheduling.tenants import Tier

SHED_ORDER: Final = (Tier.BRONZE, Tier.SILVER, Tier.GOLD)
SHED_PATIENCE: Final = 5
"""Samples that one step of degrading gets to help before the next one is taken."""
MOST_SCALE: Final = 2.0
EVENTS_KEPT: Final = 1_000


class Plan(NamedTuple):
    """What is to be done now, as data; the services act on it.

    `scale_factor`: capacity wanted over capacity there is, for the autoscaler. `replace`:
    move work off the worst devices. `micro_batch_factor`: of the usual rows. `degrade`:
    serve the configured cheaper version or a cached answer. `shed`: tiers refused, lowest
    first. `break_circuits`: open breakers of executors whose collectives fail.
    """

    level: Level
    scale_factor: float
    replace: bool
    micro_batch_factor: float
    degrade: bool
    shed: tuple[Tier, ...]
    break_circuits: bool


class Event(NamedTuple):
    """A step up or down with its cause: a signal that went above or below a limit. `shed`:
    the tiers refused from now on."""

    at_ns: int
    before: Level
    after: Level
    shed: tuple[Tier, ...]
    signal: str
    value: float
    above: bool
    limit: float

    @property
    def cause(self) -> str:
        return f"{self.signal} {self.value:g} {'above' if self.above else 'below'} {self.limit:g}"


class Governor:
    """Watches a table of rules and holds the highest level that any of them asks for.

    Rule (D6): level 1 asks for more capacity, level 2 also re-places work and halves
    micro-batches, level 3 also degrades: first the cheaper answer, then, a step for every
    `SHED_PATIENCE` samples that its signal stays above the limit, Bronze is shed, then
    Silver, then Gold. When level 3 is over the steps are undone one a sample, in reverse.

    Weakness: every action is on or off for the whole mesh; one hot model degrades all.
    """

    def __init__(self, rules: tuple[Rule, ...] = RULES) -> None:
        self._watches = [Watch(rule) for rule in rules]
        self._steps = self._waited = 0
        self._critical = self._watches[0]
        self.level = Level.NORMAL
        self.events: deque[Event] = deque(maxlen=EVENTS_KEPT)

    def __repr__(self) -> str:
        active = [w for w in self._watches if w.active]
        return f"<Governor {self.level.name}, shedding {self._steps} tiers, {active}>"

    def look(self, sample: Sample, now_ns: int) -> Plan:
        """Take in a sample; returns what is to be done until the next one."""
        before, steps = self.level, self._steps
        changed = [watch for watch in self._watches if watch.look(sample)]
        self.level = max((w.rule.level for w in self._watches if w.active), default=Level.NORMAL)
        self._shed()
        if self.level != before or self._steps != steps:
            self._note(before, self._cause(changed), now_ns)
        return self.plan()

    def plan(self) -> Plan:
        level = self.level
        return Plan(
            level,
            self._scale_factor() if level >= Level.SCALE_OUT else 1.0,
            level >= Level.REPLACE,
            0.5 if level >= Level.REPLACE else 1.0,
            level >= Level.DEGRADE,
            SHED_ORDER[: self._steps],
            level >= Level.DEGRADE,
        )

    def _shed(self) -> None:
        if self.level < Level.DEGRADE:
            self._steps, self._waited = max(0, self._steps - 1), 0
            return
        pressing = [w for w in self._watches if w.rule.level is Level.DEGRADE and w.above]
        if not pressing:
            self._waited = 0
            return
        self._critical = pressing[0]
        self._waited += 1
        if self._waited > SHED_PATIENCE and self._steps < len(SHED_ORDER):
            self._steps, self._waited = self._steps + 1, 1

    def _scale_factor(self) -> float:
        """As far above its limit as the worst signal of level 1 is, within bounds."""
        over = (w.value / w.rule.enter for w in self._watches if w.rule.level is Level.SCALE_OUT)
        return min(MOST_SCALE, max(1.1, *over))

    def _cause(self, changed: list[Watch]) -> Watch:
        """The changed rule of the highest level; without one it is a step of the ladder, whose
        cause is the signal that made level 3."""
        return max(changed, key=lambda watch: watch.rule.level, default=self._critical)

    def _note(self, before: Level, cause: Watch, now_ns: int) -> None:
        rule, above = cause.rule, cause.active
        limit = rule.enter if above else rule.leave
        self.events.append(
            Event(now_ns, before, self.level, SHED_ORDER[: self._steps], rule.signal, cause.value,
                  above, limit)
        )  # fmt: skip
