"""A group of figures that are measured together, and what it gets to do so."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sits_bench.compare import Found, Plan, Progress, Trial, alternate, expect
from sits_sim.figures import Figure, Panel


@dataclass(slots=True)
class Bench:
    """One run of the benchmark: how long, and what comes out besides figures."""

    plan: Plan
    progress: Progress
    missing: list[str] = field(default_factory=list)
    """What could not be measured, and what to do about it."""
    failures: list[str] = field(default_factory=list)
    """Groups that failed, and why."""
    raw: list[dict[str, object]] = field(default_factory=list)
    panels: list[Panel] = field(default_factory=list)

    def lacks(self, text: str) -> None:
        if text not in self.missing:
            self.missing.append(text)

    def keep(self, group: str, found: Found) -> None:
        self.raw += [{"group": group, **run} for run in found.as_list()]


class Group(Protocol):
    @property
    def name(self) -> str: ...

    def seconds(self, plan: Plan) -> float:
        """How long `run` takes, roughly."""
        ...

    def run(self, bench: Bench) -> list[Figure]:
        """Raises `BenchError`."""
        ...


@dataclass(frozen=True, slots=True)
class Comparison:
    """Systems in turn under the same loads; most groups are that."""

    name: str
    trials: Callable[[Plan], Sequence[Trial]]
    figures: Callable[[Found, Bench], list[Figure]]

    def seconds(self, plan: Plan) -> float:
        return expect(self.trials(plan), plan.rounds)

    def run(self, bench: Bench) -> list[Figure]:
        found = alternate(self.trials(bench.plan), bench.plan.rounds, bench.progress)
        bench.keep(self.name, found)
        return self.figures(found, bench)
