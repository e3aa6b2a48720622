"""Two models share each device while their loads change: fixed slices against those that follow."""

from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np

from sits_scheduling.time_slices import PERIOD_NS, WINDOW, TimeSlices
from sits_sim.clock import NS_PER_S, NS_PER_US, Clock, Process
from sits_sim.figures import Figure, Panel, Report, Series, at_most, lower, plain
from sits_sim.load import Floats, replay
from sits_sim.parallel import run_all
from sits_sim.progress import Progress
from sits_sim.scenarios.size import Size
from sits_sim.service_times import TRANSFORMER_EAGER
from sits_sim.slices import Slice
from sits_sim.traces import trace

DEVICES: Final = 16
MODELS: Final = 2
DURATION_S: Final = 60.0
PHASE_S: Final = 6.0
"""Mean time between two changes of the loads; each lasts 0.7 to 1.3 times as long."""
BUSY, QUIET = 0.95, 0.33
"""Loads of the models in units of an equal slice: one is busy, the other is not."""
RUN_ROWS: Final = TRANSFORMER_EAGER.max_rows
COPIES: Final = 16
"""Clients whose trace is replayed at once for each model."""

DEVIATION_BAR, WAIT_BAR = 0.09, 2.3


@dataclass(frozen=True, slots=True)
class Job:
    """One device. `adaptive`: slices follow the load."""

    adaptive: bool
    seed: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    waits_ms: Floats
    deviations: Floats


def run(size: Size, progress: Progress) -> Report:
    devices, duration_s = size.of(DEVICES, least=2), max(20.0, DURATION_S * size.scale)
    jobs = [
        Job(adaptive, 1000 * size.seed + device, duration_s)
        for adaptive in (False, True)
        for device in range(devices)
    ]
    outcomes = run_all(run_job, jobs, progress, "time slices", size.workers)
    fixed, following = outcomes[:devices], outcomes[devices:]
    parameters: dict[str, object] = {
        "devices": devices, "models_a_device": MODELS, "seconds": duration_s, "seed": size.seed,
        "run_ms": run_ns() / 1e6, "loads": [BUSY, QUIET], "phase_s": PHASE_S,
    }  # fmt: skip
    return Report(parameters, figures(fixed, following), [panel(fixed[0], following[0])])


def run_ns() -> int:
    """One run: a full batch of the measured transformer without CUDA graphs."""
    return int(TRANSFORMER_EAGER.of(RUN_ROWS) * NS_PER_US)


def run_job(job: Job) -> Outcome:
    clock, rng = Clock(), np.random.default_rng(job.seed)
    slices = [Slice(clock, 1 / MODELS) for _ in range(MODELS)]
    for part, at_s in zip(slices, arrivals(job.duration_s, rng), strict=True):
        clock.process(_arrive(clock, part, at_s))
    look = Look(slices, TimeSlices(MODELS) if job.adaptive else None)
    clock.every(PERIOD_NS, look, int(job.duration_s * NS_PER_S))
    clock.run()
    waits_ms = np.concatenate([part.waits_ns for part in slices]) / 1e6
    return Outcome(waits_ms, np.array(look.deviations))


def arrivals(duration_s: float, rng: np.random.Generator) -> list[Floats]:
    """Gaps of the conversation trace, stretched and squeezed so that each model's rate follows
    its load: the arrivals of a process of rate one, read at the load that has come by then."""
    edges = [0.0]
    while edges[-1] < duration_s:
        edges.append(edges[-1] + PHASE_S * rng.uniform(0.7, 1.3))
    busy = rng.integers(0, MODELS, len(edges) - 1)
    per_s = 1e9 / run_ns() / MODELS
    found = []
    for model in range(MODELS):
        loads = np.where(busy == model, BUSY, QUIET)
        come = np.concatenate([[0.0], np.cumsum(np.diff(edges) * loads)])
        steady, _ = replay(trace("azure2023_conv").gaps_s, per_s, float(come[-1]), COPIES, rng)
        at_s = np.interp(steady, come, edges)
        found.append(at_s[at_s < duration_s])
    return found


def _arrive(clock: Clock, part: Slice, at_s: Floats) -> Process:
    for at in (at_s * NS_PER_S).astype(np.int64).tolist():
        yield clock.wait(at - clock.now_ns)
        part.arrive(run_ns())


class Look:
    """Once a period: tells the controller the loads, and sets the shares it answers.

    The load of a slice is the work that came over the last window, in units of what the
    slice could do in it.
    """

    def __init__(self, slices: list[Slice], controller: TimeSlices | None) -> None:
        self._slices, self._controller = slices, controller
        self._window: deque[Floats] = deque(maxlen=WINDOW)
        self._shares = np.full(len(slices), 1 / len(slices))
        self.deviations: list[float] = []

    def __call__(self) -> None:
        loads = np.array([part.take_came_ns() for part in self._slices]) / PERIOD_NS
        self._window.append(loads)
        self.deviations.append(float((np.mean(self._window, axis=0) / self._shares).std()))
        if self._controller is not None and self._controller.look(loads.tolist()):
            self._shares = self._controller.shares
            for part, share in zip(self._slices, self._shares, strict=True):
                part.set_share(float(share))


def figures(fixed: list[Outcome], following: list[Outcome]) -> list[Figure]:
    before, after = _waits(fixed), _waits(following)
    deviation, reference = _deviation(following), _deviation(fixed)
    return [
        lower("mean wait", float(after.mean()), "ms", float(before.mean()), WAIT_BAR),
        at_most("load deviation", deviation, "", DEVIATION_BAR, reference),
        plain("p99 of waits, slices that follow", float(np.percentile(after, 99)), "ms"),
        plain("p99 of waits, fixed slices", float(np.percentile(before, 99)), "ms"),
        plain("runs", len(after), ""),
    ]


def _waits(outcomes: list[Outcome]) -> Floats:
    return np.concatenate([outcome.waits_ms for outcome in outcomes])


def _deviation(outcomes: list[Outcome]) -> float:
    return float(np.mean([outcome.deviations.mean() for outcome in outcomes]))


def panel(fixed: Outcome, following: Outcome) -> Panel:
    seconds = [PERIOD_NS / NS_PER_S * (n + 1) for n in range(len(fixed.deviations))]
    series = [
        Series(name, seconds, outcome.deviations.tolist())
        for name, outcome in (("fixed slices", fixed), ("slices that follow", following))
    ]
    return Panel("one device", "time, s", "load deviation", series)
