"""What stands before each model's queue, and what a refused request is answered with."""

from collections.abc import Collection
from typing import Final, NamedTuple

from sits_core.errors import DeadlineExceeded, ResourceExhausted, SitsError, Unavailable
from sits_preprocess.request import ModelKey, Request
from sits_scheduling.deadlines import Admission, too_late
from sits_scheduling.gate import NOTHING_NEEDED, Gate, Needs
from sits_scheduling.quotas import UNLIMITED, Bucket, Reason, Refusal
from sits_scheduling.service_times import ServiceTimes
from sits_scheduling.tenants import Tenants, Tier

SAME_NS: Final = 1_000_000
"""Answers tell times in milliseconds."""

_TEXTS: Final = {
    Reason.QUOTA_RATE: "the tenant's rate quota is used up",
    Reason.QUOTA_WAITING: "the tenant's quota of waiting requests is used up",
    Reason.WAIT: "the predicted wait is too long",
    Reason.PRODUCER: "the model's queue is long, and the tenant's part of it is used up for now",
    Reason.SHED: "the tenant's tier is refused while the mesh is overloaded",
}


class Gates:
    """Makes the gate of each model. Run times and rate quotas are shared by all of them.

    Not thread-safe: the engine's lock covers it.
    """

    def __init__(self, tenants: Tenants) -> None:
        self._tenants, self._times = tenants, ServiceTimes()
        self._buckets: dict[str, Bucket] = {}
        self.quotas = any(tenant.quota != UNLIMITED for tenant in tenants.all())

    def new(self, model: ModelKey, shed: Collection[Tier]) -> Gate:
        gate = Gate("/".join(model), self._tenants, self._times, Admission(), self._buckets)
        gate.shed = shed
        return gate

    def __repr__(self) -> str:
        return f"<Gates {self._times!r}{' with quotas' if self.quotas else ''}>"


class Refused(NamedTuple):
    """A refusal for lack of time holds for all that came at the same moment, of the same
    tenant and with as much time: a burst is refused for the price of one."""

    at_ns: int
    tenant: str
    deadline_ns: int
    reason: Reason
    error: SitsError

    def holds_for(self, request: Request, now: int) -> bool:
        return (
            now == self.at_ns
            and self.reason is Reason.DEADLINE
            and request.tenant == self.tenant
            and abs(request.deadline_ns - self.deadline_ns) < SAME_NS
        )


class Look(NamedTuple):
    """What was said of one request, and of those of its model and tenant that came with it.

    Where `each` is to be asked for itself, nothing. Else a refusal holds for all, but one for
    lack of time only for those with no more of it, and the rest is let in by what it `needs`,
    into so many `places`.
    """

    error: SitsError | None
    needs: Needs = NOTHING_NEEDED
    places: int = 1 << 30
    each: bool = False


def late(needs: Needs, left_ns: float) -> SitsError:
    """For a request that has less time left than it needs."""
    return _too_late(too_late(needs.wait_ns, needs.time_ns - left_ns))


def refused(refusal: Refusal) -> SitsError:
    """Quotas are the tenant's own doing, overload is ours, and what even an idle instance could
    not do in time is no better with a retry."""
    reason, after_ms = refusal.reason, refusal.retry_after_ms
    if reason is Reason.DEADLINE:
        return _too_late(refusal)
    cls = ResourceExhausted if reason in (Reason.QUOTA_RATE, Reason.QUOTA_WAITING) else Unavailable
    return cls(_TEXTS[reason], reason=reason.value, retry_after_ms=after_ms)


def _too_late(refusal: Refusal) -> SitsError:
    reason, after_ms = refusal.reason.value, refusal.retry_after_ms
    if not refusal.predicted_wait_ns:
        return DeadlineExceeded(
            f"the model takes {after_ms} ms more than the deadline allows", reason=reason
        )
    wait_ms = refusal.predicted_wait_ns / 1e6
    return Unavailable(
        f"the deadline cannot be met: requests wait about {wait_ms:.0f} ms, {after_ms} ms too long",
        reason=reason,
        retry_after_ms=after_ms,
    )
