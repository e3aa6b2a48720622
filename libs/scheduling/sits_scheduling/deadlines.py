"""Whether work can still be done in time, and the refusal when it cannot."""

import math
from typing import Final, NamedTuple

from sits_scheduling.quotas import Reason, Refusal
from sits_scheduling.tenants import Tier

NS_PER_MS: Final = 1_000_000
_SMOOTHING: Final = 0.05
_LEAST, _MOST = 0.5, 8.0
_DOWN: Final = 0.07
"""A wait that was shorter than thought moves the careful correction by this part of what one
that was longer does: what it follows is an expectile near the longest waits (Newey and Powell
1987). Under overload the queue is as long as admission lets it become, so that a mean would be
missed by half of those that are let in last, and waits are learnt only after they have passed:
what sinks fast would be wrong again by then."""
_MEANINGFUL_NS: Final = 1_000_000
"""Shorter waits are dominated by what is not modelled."""


class Load(NamedTuple):
    """What stands before new work of one model.

    `ahead_ns`: predicted time of the waiting work that goes before it
    (`WorkQueue.cost_ahead`, in ns). `in_flight_ns`: predicted time still reserved on the
    instances. `parallel`: batches that run at once; `idle`: how many more could now.
    """

    ahead_ns: float
    in_flight_ns: float
    parallel: int
    idle: int

    @property
    def wait_ns(self) -> float:
        """Until it starts. None of it for an idle instance with nothing ahead."""
        if self.idle > 0 and self.ahead_ns <= 0:
            return 0.0
        busy = 0.0 if self.idle > 0 else self.in_flight_ns
        return (self.ahead_ns + busy) / max(1, self.parallel)


class Admission:
    """Refuses at once what cannot finish by its deadline.

    Rule (Clockwork, OSDI 2020): finish = now + wait × careful correction + service at a high
    quantile + `overhead_ns`; later than the deadline means refused now, while the client can
    still do something else, instead of late. What is admitted late would cost an instance time
    and count for nothing, so that this maximises goodput, not throughput.

    The corrections, a mean and a careful one, are learnt by tier from predicted against actual
    waits: they hold what the fluid model leaves out (work that comes later and goes first,
    batches that form better or worse than predicted).

    What keeps a whole tier away keeps away what would correct it. So when none of a tier has
    been let in for as long as one would take, what was learnt of it is half forgotten.

    Weakness: follows a change of load within some dozen requests; the first requests
    after a sudden burst are judged by yesterday's correction. Nothing known of a model
    means admitted.
    """

    def __init__(self, overhead_ns: int = 2 * NS_PER_MS, max_wait_ns: int = 0) -> None:
        self.overhead_ns, self._max_wait_ns = overhead_ns, max_wait_ns
        self._corrections = dict.fromkeys(Tier, 1.0)
        self._careful = dict.fromkeys(Tier, 1.0)
        self._let_in_ns = dict.fromkeys(Tier, 0)

    def __repr__(self) -> str:
        parts = ", ".join(f"{t.name.lower()} ×{c:.2f}" for t, c in self._corrections.items())
        return f"<Admission wait {parts}>"

    def predicted_wait_ns(self, load: Load, tier: Tier = Tier.BRONZE) -> float:
        return load.wait_ns * self._corrections[tier]

    def careful_wait_ns(self, load: Load, tier: Tier = Tier.BRONZE) -> float:
        """What deadlines are held against."""
        return load.wait_ns * self._careful[tier]

    def longest_wait_ns(self, wait_ns: float) -> float:
        """Of all tiers, where no correction has been learnt."""
        return wait_ns * max(1.0, *self._corrections.values())

    def decide(
        self, now_ns: int, deadline_ns: int, service_ns: float, load: Load, tier: Tier = Tier.BRONZE
    ) -> Refusal | None:
        """None = admit. `service_ns`: run time at the quantile that must be met."""
        refusal = self._too_late(now_ns, deadline_ns, service_ns, load, tier)
        if refusal is None:
            self._let_in_ns[tier] = now_ns
        elif now_ns - self._let_in_ns[tier] > load.wait_ns + service_ns:
            self._forget_half(tier)
            self._let_in_ns[tier] = now_ns
        return refusal

    def _too_late(
        self, now_ns: int, deadline_ns: int, service_ns: float, load: Load, tier: Tier
    ) -> Refusal | None:
        wait_ns = self.careful_wait_ns(load, tier)
        if deadline_ns:
            finish_ns = now_ns + wait_ns + service_ns + self.overhead_ns
            if finish_ns > deadline_ns:
                return too_late(wait_ns, finish_ns - deadline_ns)
        if self._max_wait_ns and wait_ns > self._max_wait_ns:
            return _refusal(Reason.WAIT, wait_ns, wait_ns - self._max_wait_ns)
        return None

    def learn(self, tier: Tier, load: Load, actual_wait_ns: float) -> None:
        """Work judged under `load` started after `actual_wait_ns`."""
        if load.wait_ns < _MEANINGFUL_NS:
            return
        ratio = min(_MOST, max(_LEAST, actual_wait_ns / load.wait_ns))
        known, careful = self._corrections[tier], self._careful[tier]
        self._corrections[tier] = known + _SMOOTHING * (ratio - known)
        step = _SMOOTHING if ratio > careful else _DOWN * _SMOOTHING
        self._careful[tier] = careful + step * (ratio - careful)

    def _forget_half(self, tier: Tier) -> None:
        for learnt in (self._corrections, self._careful):
            learnt[tier] = (1.0 + learnt[tier]) / 2


def too_late(wait_ns: float, too_much_ns: float) -> Refusal:
    """Of work that would be done so long after its deadline."""
    return _refusal(Reason.DEADLINE, wait_ns, too_much_ns)


def _refusal(reason: Reason, wait_ns: float, too_much_ns: float) -> Refusal:
    """A retry may pass once what was too much has been worked off."""
    return Refusal(reason, int(wait_ns), max(1, math.ceil(too_much_ns / NS_PER_MS)))
