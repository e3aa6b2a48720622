"""Executors that are worse than the others are taken out for a while."""

from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from sits_scheduling.columns import Floats
from sits_scheduling.outcomes import Outcome

NS_PER_S: Final = 1_000_000_000
_SMOOTHING: Final = 0.05


@dataclass(frozen=True, slots=True)
class OutlierPolicy:
    """Judged are executors with `least` results; at most `most_part` of all are out at once."""

    least: int = 20
    deviations: float = 3.0
    least_fault_part: float = 0.1
    slow_factor: float = 3.0
    base_ns: int = 10 * NS_PER_S
    longest_ns: int = 300 * NS_PER_S
    most_part: float = 0.2


class Ejection(NamedTuple):
    """An event: who was taken out, why, until when."""

    executor: str
    cause: str
    until_ns: int


@dataclass(slots=True, eq=False)
class _Record:
    results: int = 0
    faults: float = 0.0
    slowness: float = 1.0
    times_out: int = 0
    until_ns: int = 0


class Outliers:
    """Ejects executors that fault or lag far more than the rest do.

    Rule (Envoy's outlier detection, with times as well): part of faults above the mean by
    `deviations` standard deviations and above `least_fault_part`, or run times over the
    predicted ones above `slow_factor` × the median executor's. Each ejection of the same
    executor lasts longer. Never more than `most_part` of all, and none when there is
    nobody to compare with.

    Compared is with what was predicted for the fleet, so that a slow model makes nobody
    slow. Weakness: when half of the fleet is bad, bad is normal.
    """

    def __init__(self, policy: OutlierPolicy | None = None) -> None:
        self._policy = policy or OutlierPolicy()
        self._records: dict[str, _Record] = {}

    def __repr__(self) -> str:
        return f"<Outliers {len(self._records)} executors watched>"

    def observe(self, executor: str, outcome: Outcome, over_predicted: float = 1.0) -> None:
        """A result came; `over_predicted`: its run time over the one predicted."""
        if outcome not in (Outcome.SUCCESS, Outcome.FAULT):
            return
        record = self._records.setdefault(executor, _Record())
        record.results += 1
        weight = max(_SMOOTHING, 1.0 / record.results)
        record.faults += weight * (float(outcome is Outcome.FAULT) - record.faults)
        if outcome is Outcome.SUCCESS:
            record.slowness += weight * (over_predicted - record.slowness)

    def ejected(self, now_ns: int) -> list[str]:
        """`excluded` of a placement, besides what breakers block."""
        return [e for e, record in self._records.items() if record.until_ns > now_ns]

    def evaluate(self, now_ns: int) -> list[Ejection]:
        """Call every few seconds. Returns who was newly taken out."""
        judged = {
            e: r for e, r in self._records.items()
            if r.results >= self._policy.least and r.until_ns <= now_ns
        }  # fmt: skip
        if len(judged) < 3:
            return []
        room = int(self._policy.most_part * len(self._records)) - len(self.ejected(now_ns))
        suspects = self._suspects(judged)
        worst = sorted(suspects, key=lambda item: -item[0])[: max(0, room)]
        return [self._eject(executor, cause, now_ns) for _, executor, cause in worst]

    def faulty(self, part: float) -> list[str]:
        """Executors of whose last results more than `part` were faults."""
        return [e for e, record in self._records.items() if record.faults > part]

    def forget(self, executor: str) -> None:
        """It left."""
        self._records.pop(executor, None)

    def _suspects(self, judged: dict[str, _Record]) -> list[tuple[float, str, str]]:
        """How far out, who, why."""
        policy = self._policy
        faults = np.array([record.faults for record in judged.values()])
        fault_limit = max(policy.least_fault_part, _limit(faults, policy.deviations))
        slow_limit = policy.slow_factor * median(record.slowness for record in judged.values())
        found: list[tuple[float, str, str]] = []
        for executor, record in judged.items():
            if record.faults > fault_limit:
                cause = f"{record.faults:.0%} faults, limit {fault_limit:.0%}"
                found.append((record.faults / fault_limit, executor, cause))
            elif record.slowness > slow_limit:
                cause = f"{record.slowness:.1f} × predicted time, limit {slow_limit:.1f}"
                found.append((record.slowness / slow_limit, executor, cause))
        return found

    def _eject(self, executor: str, cause: str, now_ns: int) -> Ejection:
        record = self._records[executor]
        record.times_out += 1
        lasts = min(self._policy.longest_ns, self._policy.base_ns * record.times_out)
        record.until_ns = now_ns + lasts
        # It comes back with a clean record, else the old one would take it out again.
        record.results, record.faults, record.slowness = 0, 0.0, 1.0
        return Ejection(executor, cause, record.until_ns)


def _limit(values: Floats, deviations: float) -> float:
    """Mean + deviations of the better half, so that an outlier does not hide itself."""
    better = np.sort(values)[: max(2, (len(values) + 1) // 2)]
    return float(better.mean() + deviations * better.std())
