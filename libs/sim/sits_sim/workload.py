"""Requests as arrays: when they come, how large they are, whose they are, when they are due."""

from dataclasses import dataclass

import numpy as np

from sits_sim.load import Floats, Ints

NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Workload:
    """All arrays have one value a request, in order of arrival; `deadline_ns` 0 = none.

    `tenant` and `front` are indices of the owner's choice.
    """

    at_ns: Ints
    rows: Ints
    payload_bytes: Ints
    deadline_ns: Ints
    tenant: Ints
    front: Ints

    def __len__(self) -> int:
        return len(self.at_ns)

    @property
    def duration_s(self) -> float:
        return float(self.at_ns[-1]) / NS_PER_S if len(self) else 0.0

    @property
    def rows_per_s(self) -> float:
        return float(self.rows.sum()) / self.duration_s


def workload(
    at_s: Floats,
    rows: Ints,
    *,
    bytes_per_row: int,
    fronts: int,
    rng: np.random.Generator,
    slo_s: float | Floats = 0.0,
    tenant: Ints | None = None,
) -> Workload:
    """Clients spread their requests over the front doors at random; `slo_s` after it came a
    request is due."""
    at_ns = (at_s * NS_PER_S).astype(np.int64)
    patience_ns = np.broadcast_to(np.asarray(slo_s) * NS_PER_S, at_ns.shape).astype(np.int64)
    return Workload(
        at_ns,
        rows.astype(np.int64),
        rows.astype(np.int64) * bytes_per_row,
        np.where(patience_ns > 0, at_ns + patience_ns, 0),
        np.zeros(len(at_ns), np.int64) if tenant is None else tenant,
        rng.integers(0, fronts, len(at_ns)),
    )


def ready_ns(load: Workload, front_ns: int) -> Ints:
    """When each request's front door has read it, working on one after the other.

    Lindley's recursion over the arrivals of each front, as a running maximum.
    """
    ready = load.at_ns.copy()
    for front in np.unique(load.front) if front_ns else ():
        mine = np.flatnonzero(load.front == front)
        steps = np.arange(1, len(mine) + 1) * front_ns
        ready[mine] = np.maximum.accumulate(load.at_ns[mine] - steps + front_ns) + steps
    return ready
