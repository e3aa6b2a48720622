"""Which executors hold more than their part of what waits (D6, level 2)."""

import math
from collections.abc import Sequence
from typing import NamedTuple


class Held(NamedTuple):
    """Batches of a model at one executor, running ones included. `parallel` run at once there,
    each `slowness` times as long as on the fleet."""

    executor: str
    batches: int
    parallel: int
    slowness: float = 1.0

    @property
    def rate(self) -> float:
        return max(1, self.parallel) / max(0.05, self.slowness)


def surplus(held: Sequence[Held]) -> dict[str, int]:
    """How many waiting batches each executor should give back, so that all of them would be
    done at about the same time.

    Rule: an executor's part is all batches times its share of the rate at which they are
    worked off, rounded up, and never less than what it runs. So nobody gives back what it runs,
    slow ones hold less, and what is already even is left alone. Weakness: counts batches, not
    rows; what is given back pays one more way.
    """
    rate = sum(one.rate for one in held)
    total = sum(one.batches for one in held)
    found: dict[str, int] = {}
    for one in held:
        part = max(one.parallel, math.ceil(total * one.rate / rate))
        if one.batches > part:
            found[one.executor] = one.batches - part
    return found
