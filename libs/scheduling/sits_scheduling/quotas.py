"""How much of the mesh one tenant may ask for, and the typed refusal when it asks for more."""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

NS_PER_S: Final = 1_000_000_000
RETRY_WAITING_MS: Final = 50
"""A full waiting quota empties at a rate the bucket does not know; this is a choice."""


class Reason(StrEnum):
    """Machine-readable reasons of a refusal, as they go into an error's `reason`."""

    QUOTA_RATE = "QUOTA_RATE_EXCEEDED"
    QUOTA_WAITING = "QUOTA_WAITING_EXCEEDED"
    DEADLINE = "DEADLINE_UNREACHABLE"
    WAIT = "PREDICTED_WAIT_TOO_LONG"
    SHED = "SHED_UNDER_OVERLOAD"
    PRODUCER = "PRODUCER_RATE_EXCEEDED"


class Refusal(NamedTuple):
    """Why not now. `retry_after_ms` is for `grpc-retry-pushback-ms`; `predicted_wait_ns`
    tells how long the work would have waited."""

    reason: Reason
    predicted_wait_ns: int
    retry_after_ms: int


@dataclass(frozen=True, slots=True)
class Quota:
    """In units of cost. `burst` is how much may come at once, 0 = one second's worth."""

    rate_per_s: float = math.inf
    burst: float = 0.0
    max_waiting: float = math.inf

    @property
    def depth(self) -> float:
        return self.burst or self.rate_per_s


UNLIMITED: Final = Quota()


class Bucket:
    """Token bucket of one tenant, filled by the passing of time.

    Weakness: a tenant that asks from many front doors has a bucket at each; divide the
    quota by their number.
    """

    __slots__ = ("_filled_ns", "_tokens", "quota")

    def __init__(self, quota: Quota) -> None:
        self.quota = quota
        self._tokens = quota.depth
        self._filled_ns = 0

    def admit(
        self, cost: float, waiting: float, now_ns: int, *, take: bool = True
    ) -> Refusal | None:
        """Take `cost` tokens, or say why not. `waiting`: what the tenant has queued. Not `take`:
        only look."""
        quota = self.quota
        if waiting + cost > quota.max_waiting:
            return Refusal(Reason.QUOTA_WAITING, 0, RETRY_WAITING_MS)
        if quota.rate_per_s == math.inf:
            return None
        self._fill(now_ns)
        # A piece larger than the bucket passes when it is full; the debt delays the next.
        missing = min(cost, quota.depth) - self._tokens
        if missing > 0:
            wait_ms = max(1, math.ceil(1e3 * missing / quota.rate_per_s))
            return Refusal(Reason.QUOTA_RATE, 0, wait_ms)
        if take:
            self._tokens -= cost
        return None

    def _fill(self, now_ns: int) -> None:
        elapsed_s = max(0, now_ns - self._filled_ns) / NS_PER_S
        self._filled_ns = max(self._filled_ns, now_ns)
        self._tokens = min(self.quota.depth, self._tokens + elapsed_s * self.quota.rate_per_s)
