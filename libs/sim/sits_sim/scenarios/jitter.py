"""A way to the executors that trembles: throughput with and without jitter control."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from sits_scheduling.jitter import JitterControl, Mode, Pacer, peak_per_s
from sits_sim.clock import NS_PER_MS, NS_PER_S, NS_PER_US, Clock
from sits_sim.figures import Figure, Panel, Report, Series, at_most, plain
from sits_sim.mesh import HOP_NS
from sits_sim.parallel import run_all
from sits_sim.progress import Progress
from sits_sim.scenarios.size import Size
from sits_sim.service_times import ENCODER_CPU

EXECUTORS: Final = 16
ROWS: Final = 10
DURATION_S: Final = 120.0
WARM_UP_S: Final = 10.0
DEVIATIONS_MS: Final = (5.0, 30.0, 60.0)
BARS: Final = (0.02, 0.05, 0.10)


@dataclass(frozen=True, slots=True)
class Job:
    """`deviation_ms`: of the round trips; they are longer by an exponential time."""

    deviation_ms: float
    control: bool
    duration_s: float
    seed: int


@dataclass(frozen=True, slots=True)
class Outcome:
    batches_per_s: float
    seen_deviation_ms: float
    mode: Mode
    per_second: list[int]


class Sender:
    """A front door with endless work. It may have as many batches under way as executors run
    and buffer; `control` says how many they buffer, and how fast batches may follow.
    """

    def __init__(
        self, clock: Clock, control: JitterControl | None, send: Callable[[int], None]
    ) -> None:
        self._clock, self.control, self._send = clock, control, send
        self._pacer = Pacer()
        self._out = 0
        self._held = False

    def returned(self, round_trip_ns: int) -> None:
        self._out -= 1
        if self.control is not None:
            self.control.observe(round_trip_ns)
        self.pump()

    def pump(self) -> None:
        while not self._held and self._out < self._window():
            self._out += 1
            wait_ns = self._wait_ns()
            if wait_ns > 0:
                self._held = True
                self._clock.after(wait_ns, self._held_back)
            else:
                self._send(self._clock.now_ns)

    def _held_back(self) -> None:
        self._held = False
        self._send(self._clock.now_ns)
        self.pump()

    def _window(self) -> int:
        buffers = self.control.state().buffers if self.control else 1
        return EXECUTORS * (1 + buffers)

    def _wait_ns(self) -> int:
        state = self.control.state() if self.control else None
        if state is None or state.mode is Mode.OFF:
            return 0
        per_s = state.rate * peak_per_s(drained_per_s())
        return self._pacer.wait_ns(self._clock.now_ns, per_s)


class Path:
    """Out, a free executor, and back; each round trip takes its own time on the way."""

    def __init__(self, clock: Clock, deviation_ms: float, rng: np.random.Generator) -> None:
        self._clock, self._deviation_ms, self._rng = clock, deviation_ms, rng
        self._free = EXECUTORS
        self._waiting: deque[tuple[int, int]] = deque()
        self.trips_ms: list[float] = []
        self.finished_ns: list[int] = []
        self.back: Callable[[int], None] = lambda trip_ns: None

    def send(self, _now_ns: int) -> None:
        way_ns = 2 * HOP_NS + int(self._rng.exponential(self._deviation_ms) / 2 * NS_PER_MS)
        self._clock.after(way_ns, lambda: self._came(way_ns))

    def _came(self, way_ns: int) -> None:
        if self._free:
            self._run(way_ns)
        else:
            self._waiting.append((way_ns, 0))

    def _run(self, way_ns: int) -> None:
        self._free -= 1
        self._clock.after(run_ns(), lambda: self._done(way_ns))

    def _done(self, way_ns: int) -> None:
        self._free += 1
        self.finished_ns.append(self._clock.now_ns)
        if self._waiting:
            self._run(self._waiting.popleft()[0])
        self.trips_ms.append(2 * way_ns / NS_PER_MS)
        self._clock.after(way_ns, lambda: self.back(2 * way_ns))


def run(size: Size, progress: Progress) -> Report:
    duration_s = max(2 * WARM_UP_S, DURATION_S * size.scale)
    cases = [(0.0, False), *((ms, control) for control in (False, True) for ms in DEVIATIONS_MS)]
    jobs = [Job(ms, control, duration_s, size.seed) for ms, control in cases]
    still, *rest = run_all(run_job, jobs, progress, "jitter", size.workers)
    count = len(DEVIATIONS_MS)
    parameters: dict[str, object] = {
        "executors": EXECUTORS, "run_ms": run_ns() / NS_PER_MS, "seconds": duration_s,
        "seed": size.seed, "still_per_s": still.batches_per_s,
    }  # fmt: skip
    plain_runs, controlled = rest[:count], rest[count:]
    return Report(
        parameters, figures(still, plain_runs, controlled), [panel(still, plain_runs, controlled)]
    )


def run_ns() -> int:
    return int(ENCODER_CPU.of(ROWS) * NS_PER_US)


def drained_per_s() -> float:
    """What all executors can do."""
    return EXECUTORS * NS_PER_S / run_ns()


def run_job(job: Job) -> Outcome:
    clock = Clock()
    path = Path(clock, job.deviation_ms, np.random.default_rng(job.seed))
    sender = Sender(clock, JitterControl() if job.control else None, path.send)
    path.back = sender.returned
    sender.pump()
    clock.run_until(int(job.duration_s * NS_PER_S))
    counted = np.array(path.finished_ns) / NS_PER_S
    seconds = np.arange(WARM_UP_S, job.duration_s + 0.5)
    per_second, _ = np.histogram(counted, seconds)
    mode = sender.control.state().mode if sender.control else Mode.OFF
    return Outcome(
        float(per_second.mean()), float(np.std(path.trips_ms)), mode, per_second.tolist()
    )


def figures(still: Outcome, without: list[Outcome], controlled: list[Outcome]) -> list[Figure]:
    found = []
    for ms, bar, one, other in zip(DEVIATIONS_MS, BARS, controlled, without, strict=True):
        name = f"throughput varies with a deviation of {ms:g} ms"
        found += [
            at_most(name, varies(one, still), "", bar, varies(other, still)),
            plain(f"deviation of round trips, {ms:g} ms meant", one.seen_deviation_ms, "ms"),
            plain(f"deviation over seconds at {ms:g} ms", unsteady(one), ""),
        ]
    return found


def varies(one: Outcome, still: Outcome) -> float:
    """From the throughput of a way that does not tremble."""
    return abs(one.batches_per_s / still.batches_per_s - 1.0)


def unsteady(one: Outcome) -> float:
    """Standard deviation of the throughput from second to second, over its mean."""
    return float(np.std(one.per_second) / np.mean(one.per_second))


def panel(still: Outcome, without: list[Outcome], controlled: list[Outcome]) -> Panel:
    x = [0.0, *DEVIATIONS_MS]
    series = [
        Series(name, x, [still.batches_per_s, *(one.batches_per_s for one in outcomes)])
        for name, outcomes in (("without control", without), ("jitter control", controlled))
    ]
    return Panel("throughput", "deviation of round trips, ms", "batches, 1/s", series)
