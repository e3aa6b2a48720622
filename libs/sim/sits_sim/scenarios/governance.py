"""Each signal is made to rise: is the right level taken in time, held, and given up again?"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from sits_scheduling.governance import Event, Governor, Plan
from sits_scheduling.knee import Knee
from sits_scheduling.signals import RULES, SIGNALS, Level, Rule, Sample
from sits_sim.clock import NS_PER_S, Clock
from sits_sim.figures import Figure, Panel, Report, Series, at_most, plain
from sits_sim.governed import INSTANCES, Collectives, Memory, Queue, Trouble, obey
from sits_sim.parallel import run_all
from sits_sim.progress import Progress
from sits_sim.scenarios.size import Size

SAMPLES: Final = 200
TROUBLE_FROM, TROUBLE_TO = 30, 70
PERIOD_NS: Final = NS_PER_S
WITHIN: Final = 3

CASES: Final[dict[str, Trouble]] = {
    "queue, a little too much load": Trouble(load=1.06),
    "queue, a third too much load": Trouble(load=1.35),
    "queue, twice the load": Trouble(load=2.0),
    "queue, three times the load": Trouble(load=3.0),
    "queue, far too much load": Trouble(load=4.5),
    "collectives fail, 0.06 %": Trouble(failure=0.0006),
    "collectives fail, 0.4 %": Trouble(failure=0.004),
    "collectives fail, 2 %": Trouble(failure=0.02),
    "memory uneven and in pieces": Trouble(skew=0.5),
    "collectives share links": Trouble(sharing=3),
    "load past the knee": Trouble(load=0.95),
}


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    trouble: Trouble
    seed: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """`late`: samples from a signal's staying above a limit to its level, at worst; `above`:
    levels taken beyond what any signal asked for; `flaps`: levels taken again within 30
    samples of leaving them; `undone`: whether all is as before at the end."""

    name: str
    highest: Level
    late: int
    above: int
    flaps: int
    undone: bool
    levels: list[int]
    causes: list[str]


def run(size: Size, progress: Progress) -> Report:
    jobs = [Job(name, trouble, size.seed) for name, trouble in CASES.items()]
    outcomes = run_all(run_job, jobs, progress, "governance", size.workers)
    parameters: dict[str, object] = {
        "samples": SAMPLES, "period_s": PERIOD_NS / NS_PER_S, "seed": size.seed,
        "trouble_from_to": [TROUBLE_FROM, TROUBLE_TO], "instances": INSTANCES,
        "causes": {one.name: one.causes for one in outcomes},
    }  # fmt: skip
    figures = [figure for one in outcomes for figure in figures_of(one)]
    return Report(parameters, figures, [panel(outcomes)])


def run_job(job: Job) -> Outcome:
    world = World(job)
    world.run()
    return world.outcome()


class World:
    """Takes a sample every period, shows it to the governor, and does what the plan says."""

    def __init__(self, job: Job) -> None:
        rng = np.random.default_rng(job.seed)
        self._job, self._clock = job, Clock()
        self._queue, self._memory = Queue(self._clock, rng), Memory(rng)
        self._collectives, self._knee = Collectives(rng), Knee()
        self.governor = Governor()
        self._plan = self._neutral = self.governor.plan()
        self.samples: list[Sample] = []
        self.levels: list[Level] = []

    def run(self) -> None:
        until_ns = SAMPLES * PERIOD_NS
        self._queue.load = Trouble().load
        self._clock.process(self._queue.arrivals(until_ns))
        self._clock.every(PERIOD_NS, self._look, until_ns)
        self._clock.run()

    def outcome(self) -> Outcome:
        events = list(self.governor.events)
        return Outcome(
            self._job.name,
            max(self.levels),
            max((late(rule, self.samples, self.levels) for rule in RULES), default=0),
            beyond(self.samples, self.levels),
            flaps(self.levels),
            self._plan == self._neutral and self._queue.instances == INSTANCES,
            [int(level) for level in self.levels],
            [describe(event) for event in events],
        )

    def _look(self) -> None:
        wrong = TROUBLE_FROM <= len(self.samples) < TROUBLE_TO
        trouble = self._job.trouble if wrong else Trouble()
        self._queue.load = trouble.load
        self.samples.append(self._sample(trouble, self._plan))
        self._plan = self.governor.look(self.samples[-1], self._clock.now_ns)
        self.levels.append(self._plan.level)
        obey(self._queue, self._plan)

    def _sample(self, trouble: Trouble, plan: Plan) -> Sample:
        median_ms, p95_ms = self._queue.take_times_ms()
        load = trouble.load * INSTANCES / self._queue.instances
        self._knee.observe(load, p95_ms)
        spread, block = self._memory.look(trouble.skew, plan.replace)
        return Sample(
            median_ms,
            self._collectives.failed(trouble.failure, plan.break_circuits),
            spread,
            block,
            self._collectives.share(trouble.sharing, plan.replace),
            self._knee.over(load),
        )


def late(rule: Rule, samples: list[Sample], levels: list[Level]) -> int:
    """Samples from the first of as many in a row above the limit as the rule needs, up to the
    one with the level; all there are when it never came, 0 when nothing was asked."""
    above = [SIGNALS[rule.signal](sample) > rule.enter for sample in samples]
    onsets = [n for n in range(len(above)) if above[n : n + rule.needed] == [True] * rule.needed]
    if not onsets:
        return 0
    reached = [n for n in range(onsets[0], len(levels)) if levels[n] >= rule.level]
    return reached[0] - onsets[0] + 1 if reached else len(levels)


def beyond(samples: list[Sample], levels: list[Level]) -> int:
    """How far the level went above the highest that any signal's value asked for."""
    asked = [
        rule.level
        for rule in RULES
        if any(SIGNALS[rule.signal](sample) > rule.enter for sample in samples)
    ]
    return max(levels) - max(asked, default=Level.NORMAL)


def flaps(levels: list[Level]) -> int:
    """Times that a level was taken again within 30 samples of being left."""
    count = 0
    for level in (Level.SCALE_OUT, Level.REPLACE, Level.DEGRADE):
        held = [present >= level for present in levels]
        left = [n for n in range(1, len(held)) if held[n - 1] and not held[n]]
        count += sum(any(held[n : n + 30]) for n in left)
    return count


def describe(event: Event) -> str:
    second = event.at_ns // NS_PER_S
    shed = f", shedding {', '.join(t.name.lower() for t in event.shed)}" if event.shed else ""
    return f"{second} s: {event.before.name} to {event.after.name}{shed}: {event.cause}"


def figures_of(one: Outcome) -> list[Figure]:
    return [
        at_most(f"{one.name}: samples until its level", one.late, "", WITHIN),
        at_most(f"{one.name}: levels beyond what was asked", one.above, "", 0),
        at_most(f"{one.name}: levels taken again soon", one.flaps, "", 0),
        at_most(f"{one.name}: steps not undone", int(not one.undone), "", 0),
        plain(f"{one.name}: highest level", int(one.highest), ""),
    ]


def panel(outcomes: list[Outcome]) -> Panel:
    x = [float(n) for n in range(SAMPLES)]
    series = [Series(one.name, x, [float(level) for level in one.levels]) for one in outcomes]
    return Panel("levels", "sample", "level", series)
