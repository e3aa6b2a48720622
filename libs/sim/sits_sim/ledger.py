"""What became of every request. Each ends once, or it is an error of the simulation."""

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from sits_sim.load import Floats, Ints
from sits_sim.workload import Workload

NS_PER_MS = 1e6

Flags = npt.NDArray[np.bool_]


class End(IntEnum):
    OPEN = 0
    ANSWERED = 1
    REFUSED = 2
    EXPIRED = 3
    FAILED = 4


class Ledger:
    """Outcome and time of every request of a workload."""

    def __init__(self, load: Workload) -> None:
        self.load = load
        self._end = [0] * len(load)
        self._ended_ns = [0] * len(load)
        self.closed = 0

    def __repr__(self) -> str:
        return f"<Ledger {self.closed} of {len(self.load)} closed>"

    def close(self, request: int, end: End, at_ns: int) -> None:
        if self._end[request]:
            raise RuntimeError(
                f"request {request} ended twice: {End(self._end[request]).name}, {end.name}"
            )
        self._end[request] = int(end)
        self._ended_ns[request] = at_ns
        self.closed += 1

    def results(self) -> "Results":
        """Raises `RuntimeError` when a request has no end."""
        if self.closed != len(self.load):
            raise RuntimeError(f"{len(self.load) - self.closed} requests were lost")
        return Results(self.load, np.array(self._end), np.array(self._ended_ns))


class Results:
    """Latencies and shares over the requests that came after the warm-up."""

    def __init__(self, load: Workload, end: Ints, ended_ns: Ints, keep: Flags | None = None):
        kept = np.ones(len(load), bool) if keep is None else keep
        self._load, self._end, self._ended_ns, self._kept = load, end, ended_ns, kept
        self.tenant = load.tenant[kept]
        self.end = end[kept]
        self.latency_ms: Floats = (ended_ns[kept] - load.at_ns[kept]) / NS_PER_MS
        due = load.deadline_ns[kept]
        self.in_time: Flags = (self.end == End.ANSWERED) & ((due == 0) | (ended_ns[kept] <= due))
        self.at_s: Floats = load.at_ns[kept] / 1e9

    def __len__(self) -> int:
        return len(self.end)

    def after(self, warm_up_s: float) -> "Results":
        """Only those that came after the first `warm_up_s`."""
        keep = self._kept & (self._load.at_ns >= warm_up_s * 1e9)
        return Results(self._load, self._end, self._ended_ns, keep)

    def of_tenant(self, *tenants: int) -> "Results":
        keep = self._kept & np.isin(self._load.tenant, tenants)
        return Results(self._load, self._end, self._ended_ns, keep)

    def share(self, end: End) -> float:
        return float((self.end == end).mean()) if len(self) else 0.0

    @property
    def attainment(self) -> float:
        """Share of all requests, refused ones included, that were answered in time."""
        return float(self.in_time.mean()) if len(self) else 1.0

    def percentile_ms(self, percent: float) -> float:
        """Of answered requests."""
        answered = self.latency_ms[self.end == End.ANSWERED]
        return float(np.percentile(answered, percent)) if len(answered) else 0.0

    def goodput_per_s(self, from_s: float, to_s: float) -> float:
        """Answers in time that came between two moments, a second. Of overload, which has no
        steady state, a run's end does not count: what still waits then is answered later."""
        ended_s = self._ended_ns[self._kept] / 1e9
        inside = self.in_time & (ended_s >= from_s) & (ended_s < to_s)
        return float(inside.sum() / (to_s - from_s))
