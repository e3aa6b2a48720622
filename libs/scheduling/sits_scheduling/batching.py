"""Batch forming: when a queue of requests becomes a batch, and what goes into it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from sits_scheduling.entry import DEFAULT_PRIORITY as DEFAULT_PRIORITY
from sits_scheduling.entry import URGENT_PRIORITY as URGENT_PRIORITY
from sits_scheduling.entry import Entry as Entry
from sits_scheduling.orders import Order, Priority
from sits_scheduling.queueing import WorkQueue
from sits_scheduling.tenants import Tenant, Tenants

T = TypeVar("T")

PREFETCH_LEAD_NS = 1_000_000
"""A batch leaves this long before an instance is expected to be free: about what two
gRPC hops take, so that the instance finds it waiting."""


class CloseReason(Enum):
    """Why a batch was closed; values are the numbers of sits.v1.CloseReason."""

    IDLE = 1
    ROWS = 2
    REQUESTS = 3
    BYTES = 4
    WINDOW = 5
    URGENT = 6
    DEADLINE = 7
    UNBATCHED = 8


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """Limits of one model. 0 = no such rule, except `max_rows`: 0 = it does not batch.

    `window_ns` > 0 makes the first request wait that long for company even when an
    instance is free; `close_requests` and `close_bytes` end the wait early. `lead_ns`: how
    long before an instance is free a batch may leave; more than the way to it costs company.
    `least_run_ns`: no batch leaves ahead of shorter runs; such an instance is idle anyway, and
    small batches cost processor time.
    """

    max_rows: int
    max_bytes: int = 64 << 20
    window_ns: int = 0
    close_rows: int = 0
    close_requests: int = 0
    close_bytes: int = 0
    lead_ns: int = PREFETCH_LEAD_NS
    least_run_ns: int = PREFETCH_LEAD_NS


class Capacity(NamedTuple):
    """What may be sent: `room` more batches, `idle` of them to free instances.

    `next_idle_ns`: when an instance is expected to be free; 0 = cannot tell.
    `service_ns`: expected time from sending to the answer.
    """

    room: int
    idle: int
    next_idle_ns: int = 0
    service_ns: int = 0


class ClosedBatch(NamedTuple, Generic[T]):
    items: list[T]
    rows: int
    payload_bytes: int
    reason: CloseReason


class BatchQueue(Generic[T]):
    """Requests of one model that may share a run.

    The rule: a full batch leaves as soon as there is room; a smaller one when an instance
    is free or about to be, so that it grows while waiting gains nothing by leaving. With
    a window, the oldest request waits that long first. Urgent requests and deadlines cut
    every wait short. A batch is filled in the order of a `WorkQueue`: tenants by their
    weights, each one's requests by `order`.

    Known weakness: a request that does not fit ends the batch, even when a smaller one
    behind it would.
    """

    def __init__(
        self, policy: BatchPolicy, order: Order | None = None, tenants: Tenants | None = None
    ) -> None:
        self.policy = policy
        quantum = float(max(1, policy.max_rows))
        self._queue: WorkQueue[T] = WorkQueue(order or Priority(), tenants, quantum)

    def __len__(self) -> int:
        return len(self._queue)

    def __repr__(self) -> str:
        return f"<BatchQueue {len(self)} requests, {self.rows} rows, {self.payload_bytes} bytes>"

    @property
    def rows(self) -> int:
        return self._queue.rows

    @property
    def payload_bytes(self) -> int:
        return self._queue.payload_bytes

    def add(self, entry: Entry[T]) -> None:
        self._queue.add(entry)

    def remove(self, entry: Entry[T]) -> bool:
        """Take `entry` out, e.g. when it is cancelled. False when it was not queued."""
        return self._queue.remove(entry)

    @property
    def fresh(self) -> bool:
        """As good as a new one, see `WorkQueue.fresh`."""
        return self._queue.fresh

    def set_order(self, order: Order) -> None:
        """Another order from now on; nothing that waits is lost."""
        self._queue.set_order(order)

    def oldest_ns(self) -> int:
        """Arrival of the longest waiting request. The queue must not be empty."""
        return self._queue.oldest_ns()

    def should_close(self, now_ns: int, capacity: Capacity) -> CloseReason | None:
        """The reason to send a batch now, or None to wait."""
        if not len(self) or capacity.room <= 0:
            return None
        policy = self.policy
        if policy.max_rows == 0:
            return CloseReason.UNBATCHED
        if self.rows >= policy.max_rows:
            return CloseReason.ROWS
        if self.payload_bytes >= policy.max_bytes:
            return CloseReason.BYTES
        if self._queue.urgent:
            return CloseReason.URGENT
        if not self._instance_soon(now_ns, capacity):
            return None
        return self._wait_is_over(now_ns, capacity)

    def next_wakeup_ns(self, now_ns: int, capacity: Capacity) -> int | None:
        """When `should_close` may turn true without any event; None = only after one."""
        if not len(self) or capacity.room <= 0:
            return None
        free_at = now_ns if capacity.idle > 0 else capacity.next_idle_ns - self.policy.lead_ns
        if capacity.idle <= 0 and capacity.next_idle_ns == 0:
            return None
        if self.policy.window_ns == 0:
            return free_at
        due = min(self.oldest_ns() + self.policy.window_ns, self._last_call_ns(capacity))
        return max(free_at, due)

    def take(self, reason: CloseReason, now_ns: int = 0) -> ClosedBatch[T]:
        """Remove and return the next batch."""
        rows, size = self.rows, self.payload_bytes
        taken = self._queue.take_batch(self.policy.max_rows, self.policy.max_bytes, now_ns)
        items = [entry.item for entry in taken]
        return ClosedBatch(items, rows - self.rows, size - self.payload_bytes, reason)

    def hopeless(self, now_ns: int, service_ns: int = 0) -> list[Entry[T]]:
        """Take out what cannot be done by its deadline even if it started now."""
        return self._queue.hopeless(now_ns, service_ns)

    def cost_ahead(self, tenant: str, cost: float) -> float:
        """Expected cost that is served before a new entry, see `WorkQueue.cost_ahead`."""
        return self._queue.cost_ahead(tenant, cost)

    def cost_bound(self, tenant: str, cost: float, level: int) -> float:
        """Cost that is served at most before a new entry, see `WorkQueue.cost_bound`."""
        return self._queue.cost_bound(tenant, cost, level)

    def entries(self) -> Iterator[Entry[T]]:
        """All that waits, by arrival."""
        return self._queue.entries()

    def waiting_cost(self, tenant: str | None = None) -> float:
        return self._queue.waiting_cost(tenant)

    def least(self, of: Mapping[str, float]) -> float:
        """The least that `of` has for anybody who waits here, see `WorkQueue.least`."""
        return self._queue.least(of)

    def waiting(self) -> list[tuple[Tenant, float]]:
        """Who has work here, and of which cost."""
        return self._queue.waiting()

    def _wait_is_over(self, now_ns: int, capacity: Capacity) -> CloseReason | None:
        policy = self.policy
        if policy.window_ns == 0:
            return CloseReason.IDLE
        if policy.close_rows and self.rows >= policy.close_rows:
            return CloseReason.ROWS
        if policy.close_requests and len(self) >= policy.close_requests:
            return CloseReason.REQUESTS
        if policy.close_bytes and self.payload_bytes >= policy.close_bytes:
            return CloseReason.BYTES
        if now_ns >= self.oldest_ns() + policy.window_ns:
            return CloseReason.WINDOW
        if now_ns >= self._last_call_ns(capacity):
            return CloseReason.DEADLINE
        return None

    def _instance_soon(self, now_ns: int, capacity: Capacity) -> bool:
        if capacity.idle > 0:
            return True
        known = capacity.next_idle_ns != 0
        return known and now_ns >= capacity.next_idle_ns - self.policy.lead_ns

    def _last_call_ns(self, capacity: Capacity) -> int:
        """Latest moment to send for the earliest deadline to be met."""
        return self._queue.earliest_deadline_ns() - 2 * capacity.service_ns
