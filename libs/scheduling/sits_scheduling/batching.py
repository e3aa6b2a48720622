"""Batch forming: when a queue of requests becomes a batch, and what goes into it."""

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

URGENT_PRIORITY = 1
DEFAULT_PRIORITY = 2
"""Priority 0 on the wire means this one: 1 is above it, 3 and more are below."""

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
    instance is free; `close_requests` and `close_bytes` end the wait early.
    """

    max_rows: int
    max_bytes: int = 64 << 20
    window_ns: int = 0
    close_rows: int = 0
    close_requests: int = 0
    close_bytes: int = 0


class Capacity(NamedTuple):
    """What may be sent: `room` more batches, `idle` of them to free instances.

    `next_idle_ns`: when an instance is expected to be free; 0 = cannot tell.
    `service_ns`: expected time from sending to the answer.
    """

    room: int
    idle: int
    next_idle_ns: int = 0
    service_ns: int = 0


@dataclass(slots=True, eq=False)
class Entry(Generic[T]):
    """A queued request as the batcher sees it. `deadline_ns` 0 = none."""

    item: T
    rows: int
    payload_bytes: int
    arrived_ns: int
    deadline_ns: int = 0
    priority: int = DEFAULT_PRIORITY
    queued: bool = False


class ClosedBatch(NamedTuple, Generic[T]):
    items: list[T]
    rows: int
    payload_bytes: int
    reason: CloseReason


class BatchQueue(Generic[T]):
    """Requests of one model that may share a run, most urgent first, then by arrival.

    The rule: a full batch leaves as soon as there is room; a smaller one when an instance
    is free or about to be, so that it grows while waiting gains nothing by leaving. With
    a window, the oldest request waits that long first. Urgent requests and deadlines cut
    every wait short.

    Known weakness: strict priority inside one queue; fairness between tenants is decided
    before requests get here.
    """

    def __init__(self, policy: BatchPolicy) -> None:
        self.policy = policy
        self.rows = 0
        self.payload_bytes = 0
        self._by_priority: dict[int, deque[Entry[T]]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return f"<BatchQueue {self._length} requests, {self.rows} rows, {self.payload_bytes} bytes>"

    def add(self, entry: Entry[T]) -> None:
        entry.queued = True
        self._count(entry, 1)
        self._by_priority.setdefault(entry.priority, deque()).append(entry)

    def remove(self, entry: Entry[T]) -> bool:
        """Take `entry` out, e.g. when it is cancelled. False when it was not queued."""
        if not entry.queued:
            return False
        entry.queued = False
        self._count(entry, -1)
        self._drop_dead_heads()
        return True

    def oldest_ns(self) -> int:
        """Arrival of the longest waiting request. The queue must not be empty."""
        return min(lane[0].arrived_ns for lane in self._by_priority.values() if lane)

    def should_close(self, now_ns: int, capacity: Capacity) -> CloseReason | None:
        """The reason to send a batch now, or None to wait."""
        if not self._length or capacity.room <= 0:
            return None
        policy = self.policy
        if policy.max_rows == 0:
            return CloseReason.UNBATCHED
        if self.rows >= policy.max_rows:
            return CloseReason.ROWS
        if self.payload_bytes >= policy.max_bytes:
            return CloseReason.BYTES
        if self._urgent():
            return CloseReason.URGENT
        if not self._instance_soon(now_ns, capacity):
            return None
        return self._wait_is_over(now_ns, capacity)

    def next_wakeup_ns(self, now_ns: int, capacity: Capacity) -> int | None:
        """When `should_close` may turn true without any event; None = only after one."""
        if not self._length or capacity.room <= 0:
            return None
        free_at = now_ns if capacity.idle > 0 else capacity.next_idle_ns - PREFETCH_LEAD_NS
        if capacity.idle <= 0 and capacity.next_idle_ns == 0:
            return None
        if self.policy.window_ns == 0:
            return free_at
        due = min(self.oldest_ns() + self.policy.window_ns, self._last_call_ns(capacity))
        return max(free_at, due)

    def take(self, reason: CloseReason) -> ClosedBatch[T]:
        """Remove and return the next batch."""
        items: list[T] = []
        rows = size = 0
        for entry in self._in_order():
            if items and not self._fits(rows + entry.rows, size + entry.payload_bytes):
                break
            entry.queued = False
            self._count(entry, -1)
            items.append(entry.item)
            rows += entry.rows
            size += entry.payload_bytes
        self._drop_dead_heads()
        return ClosedBatch(items, rows, size, reason)

    def entries(self) -> Iterator[Entry[T]]:
        return self._in_order()

    def _fits(self, rows: int, size: int) -> bool:
        return rows <= self.policy.max_rows and size <= self.policy.max_bytes

    def _wait_is_over(self, now_ns: int, capacity: Capacity) -> CloseReason | None:
        policy = self.policy
        if policy.window_ns == 0:
            return CloseReason.IDLE
        if policy.close_rows and self.rows >= policy.close_rows:
            return CloseReason.ROWS
        if policy.close_requests and self._length >= policy.close_requests:
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
        return known and now_ns >= capacity.next_idle_ns - PREFETCH_LEAD_NS

    def _last_call_ns(self, capacity: Capacity) -> int:
        """Latest moment to send for the earliest deadline to be met."""
        deadlines = [e.deadline_ns for e in self._in_order() if e.deadline_ns]
        return min(deadlines) - 2 * capacity.service_ns if deadlines else 1 << 63

    def _urgent(self) -> bool:
        lane = self._by_priority.get(URGENT_PRIORITY)
        return bool(lane)

    def _in_order(self) -> Iterator[Entry[T]]:
        for priority in sorted(self._by_priority):
            yield from (e for e in self._by_priority[priority] if e.queued)

    def _drop_dead_heads(self) -> None:
        for priority, lane in list(self._by_priority.items()):
            while lane and not lane[0].queued:
                lane.popleft()
            if not lane:
                del self._by_priority[priority]

    def _count(self, entry: Entry[T], sign: int) -> None:
        self._length += sign
        self.rows += sign * entry.rows
        self.payload_bytes += sign * entry.payload_bytes


BatchKey = Hashable
"""Requests with equal keys may share a run: same inputs, inner shapes and parameters."""
