"""How fast each tenant may fill a model's queue once it is no longer short (P5)."""

import math
from collections import Counter
from typing import Final

from sits_preprocess.request import Request
from sits_scheduling.producers import POLICIES, SLICE_NS
from sits_scheduling.quotas import Reason, Refusal
from sits_scheduling.tenants import Tenants
from sits_scheduling.watermarks import LOW_PART, Watermarks

HIGH_PART: Final = 0.75
"""Of the queue's limit: the room above it is for what comes before the next look."""
PERIOD_NS: Final = 10 * SLICE_NS
"""How often the adaptive quota looks at the queue, and how long a quota lasts."""


class Producers:
    """The tenants in front of one model's queue, and what each has put in lately.

    Below the low mark everybody may put in: a short queue needs no sharing. From there on a
    tenant has the quota of the policy for each period, and is told when the next one begins.
    Known weakness: counts requests, not rows. Not thread-safe: the engine's lock covers it.
    """

    def __init__(self, policy: str, tenants: Tenants, max_queue: int) -> None:
        high = max(1, int(HIGH_PART * max_queue))
        self._marks, self._tenants = Watermarks(high, int(LOW_PART * high)), tenants
        names = [tenant.name for tenant in tenants.all()]
        self._policy = POLICIES[policy](names, self._marks)
        sliced = policy == "fixed_slices"
        self._period_ns = SLICE_NS if sliced else PERIOD_NS
        self._round = len(names) if sliced else 1
        self._period = 0
        self._put: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<Producers {self._policy.name} {dict(self._put)}>"

    def judge(self, request: Request, waiting: int, now: int) -> Refusal | None:
        """Why `request` may not be put into a queue of so many; None = it may."""
        self._begin(waiting, now)
        if waiting < self._marks.low:
            return None
        name = self._tenants.of(request.tenant).name
        if self._put[name] < self._policy.quota(name, now):
            return None
        return Refusal(Reason.PRODUCER, 0, math.ceil(self._round * self._period_ns / 1e6))

    def put(self, request: Request) -> None:
        """It was put in."""
        self._put[self._tenants.of(request.tenant).name] += 1

    def _begin(self, waiting: int, now: int) -> None:
        period = now // self._period_ns
        if period != self._period:
            self._period = period
            self._put.clear()
            self._policy.level(waiting)
