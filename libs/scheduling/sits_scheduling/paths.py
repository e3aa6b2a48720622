"""What the later steps of a pipeline would cost, seen from each executor."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from sits_scheduling.affinity import LINK_LATENCY_NS, Place
from sits_scheduling.candidates import UNKNOWN_COST_NS, ExecutorTable
from sits_scheduling.columns import Floats
from sits_scheduling.pipelines import Step, costs_ahead
from sits_scheduling.service_times import ServiceTimes

_NOBODY_US: Final = 1e12
_ANYWHERE: Final = Place("")


class Later(NamedTuple):
    """A step that follows. `model` is the table's key."""

    model: str
    rows: int
    input_bytes: float


def costs_of(
    later: Sequence[Later], table: ExecutorTable, times: ServiceTimes, now_ns: int
) -> Floats:
    """Microseconds of the cheapest way through `later`, from each position of the table.

    Asked again at every step, with the waits of then. Weakness: O(steps x executors^2).
    """
    way = table.us_per_byte()
    steps = [_step(one, table, times, now_ns) for one in later]
    return costs_ahead(steps, [way] * len(steps), LINK_LATENCY_NS * 1e-3)


def _step(one: Later, table: ExecutorTable, times: ServiceTimes, now_ns: int) -> Step:
    service_ns = times.expected_ns(one.model, one.rows) or UNKNOWN_COST_NS
    seen = table.candidates(one.model, _ANYWHERE, now_ns=now_ns)
    cost_us = (seen.wait_ns + service_ns * seen.speed) * 1e-3
    return Step(np.where(seen.allowed, cost_us, _NOBODY_US), one.input_bytes)
