"""Runs systems in turn, several rounds of it, and takes medians: the machine's moods hit all."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from sits_bench import copies, loadgen, messages
from sits_bench.loadgen import BenchError, Load, Measured
from sits_bench.messages import Inference
from sits_bench.paths import WORK
from sits_bench.system import Running, System

FAILED_SHARE: Final = 0.001
"""A closed loop in which more fails than this measures something else."""

Check = Callable[[Running], None]
Value = Callable[[Measured], float]


class Progress(Protocol):
    """Hears what is done; seconds are the unit, as each step knows how long it takes."""

    def expect(self, seconds: float) -> None: ...
    def step(self, text: str, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how often. Quick runs say which way a change goes, not how far."""

    rounds: int = 3
    slow_rounds: int = 3
    """For what takes long to start."""
    warm_up_s: float = 1.5
    duration_s: float = 8.0

    def closed(self, requests: Path, in_flight: int, *, times: float = 1.0) -> Load:
        """`times` as long as usual, for what is slow."""
        return Load(
            requests,
            in_flight=in_flight,
            warm_up_s=self.warm_up_s,
            duration_s=self.duration_s * times,
        )


QUICK: Final = Plan(rounds=3, slow_rounds=1, warm_up_s=0.6, duration_s=1.4)
FULL: Final = Plan()


@dataclass(frozen=True, slots=True)
class Trial:
    """A system, what is done to it each round, and how it is known to answer rightly."""

    system: System
    loads: Mapping[str, Load]
    check: Check
    client_cpus: frozenset[int] = frozenset()
    rounds: int = 99
    """At most so many."""
    start_s: float = 4.0
    """How long starting and stopping take, roughly."""

    @property
    def seconds(self) -> float:
        return self.start_s + sum(load.seconds for load in self.loads.values())


@dataclass(slots=True)
class Found:
    """All runs, by system and load."""

    runs: dict[tuple[str, str], list[Measured]] = field(default_factory=dict)

    def add(self, system: str, load: str, measured: Measured) -> None:
        self.runs.setdefault((system, load), []).append(measured)

    def has(self, system: str) -> bool:
        return any(name == system for name, _ in self.runs)

    def median(self, system: str, load: str, value: Value) -> float:
        return statistics.median(value(run) for run in self.runs[system, load])

    def as_list(self) -> list[dict[str, object]]:
        """For the kept results."""
        return [
            {"system": system, "load": load, **asdict(run)}
            for (system, load), runs in self.runs.items()
            for run in runs
        ]


def per_s(run: Measured) -> float:
    return run.per_s


def p50_ms(run: Measured) -> float:
    return run.answered.p50


def p99_ms(run: Measured) -> float:
    return run.answered.p99


def cpu_us(run: Measured) -> float:
    return run.cpu_us


def copies_between(run: Measured) -> float:
    return run.copies.between


def copies_in_all(run: Measured) -> float:
    return run.copies.everywhere


def expect(trials: Sequence[Trial], rounds: int) -> float:
    """Seconds that `alternate` takes."""
    return sum(trial.seconds * min(rounds, trial.rounds) for trial in trials)


def alternate(trials: Sequence[Trial], rounds: int, progress: Progress) -> Found:
    """Every round starts with another system. Raises `BenchError`."""
    found = Found()
    for number in range(rounds):
        first = number % len(trials)
        for trial in (*trials[first:], *trials[:first]):
            if number < trial.rounds:
                _one(trial, found, progress)
    return found


def _one(trial: Trial, found: Found, progress: Progress) -> None:
    name = trial.system.name
    progress.step(f"{name}: starting", 0)
    with started(trial) as running:
        progress.step(f"{name}: started", trial.start_s)
        for label, load in trial.loads.items():
            found.add(name, label, steady(running, load, trial.client_cpus))
            progress.step(f"{name}: {label}", load.seconds)


@contextmanager
def started(trial: Trial) -> Iterator[Running]:
    with trial.system.start() as running:
        trial.check(running)
        yield running


def run(running: Running, load: Load, client_cpus: frozenset[int] = frozenset()) -> Measured:
    before = copies.counted(running)
    measured = loadgen.run(
        load,
        running.target,
        running.pids(),
        path=running.path,
        http1=running.http1,
        cpus=client_cpus,
    )
    return replace(measured, copies=copies.per_request(before, copies.counted(running)))


def steady(running: Running, load: Load, client_cpus: frozenset[int] = frozenset()) -> Measured:
    """A run in which nothing may fail. Raises `BenchError` with the first error otherwise."""
    measured = run(running, load, client_cpus)
    failed = measured.refused.count + measured.expired.count + measured.unanswered
    if not measured.ok or failed > FAILED_SHARE * measured.answered.count:
        raise BenchError(
            f"{failed} of {measured.answered.count + failed} requests failed at "
            f"{running.target}: {measured.first_error or measured.statuses}"
        )
    return measured


def request_file(name: str, inferences: Sequence[Inference], *, raw: bool = False) -> Path:
    return messages.write(WORK / "requests" / name, inferences, raw=raw)
