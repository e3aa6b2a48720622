"""How much of the time the ways to executors are taken by tensors (D6: communication share)."""

import math
from collections import Counter
from collections.abc import Callable, Mapping

from sits_scheduling.affinity import OTHER_HOST, SAME_DEVICE, Place, way_of

Affinity = Callable[[Place, str], float]
"""Of a place and an executor, from published weights; NaN = unknown."""


class WaysTaken:
    """What moved since the last look, over what the way to its executor carries by the weight that
    topology publishes. The executor whose way is taken for longest counts.

    Weakness: only ways within a host have a weight, so that links between hosts and the sums of
    gangs are not in it; both directions are added up, as if they shared the link.
    """

    def __init__(self) -> None:
        self._before: Mapping[tuple[Place, str], int] = {}
        self._looked_ns = 0

    def share(self, totals: Mapping[tuple[Place, str], int], affinity: Affinity, now: int) -> float:
        """`totals` are bytes since the start, by place and executor."""
        passed_ns, before = now - self._looked_ns if self._looked_ns else 0, self._before
        self._before, self._looked_ns = totals, now
        taken_ns: Counter[str] = Counter()
        for (place, executor), total in totals.items():
            seen = before.get((place, executor), 0)
            moved = total - seen if total >= seen else total  # it left, and is back
            taken_ns[executor] += int(moved * _ns_per_byte(affinity(place, executor)))
        return min(1.0, max(taken_ns.values(), default=0) / passed_ns) if passed_ns > 0 else 0.0

    def __repr__(self) -> str:
        return f"<WaysTaken of {len(self._before)} ways>"


def _ns_per_byte(weight: float) -> float:
    """0 for the device itself, and where nothing is known."""
    known = not math.isnan(weight) and OTHER_HOST < weight < SAME_DEVICE
    return way_of(weight).ns_per_byte if known else 0.0
