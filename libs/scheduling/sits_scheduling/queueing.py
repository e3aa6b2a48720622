"""Waiting work: fair between tenants, ordered within each, never lost by a switch of the order."""

import heapq
import math
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Generic, TypeVar

from sits_scheduling.entry import URGENT_PRIORITY, Entry
from sits_scheduling.orders import Order
from sits_scheduling.tenants import DeficitRing, Tenant, Tenants, charge

T = TypeVar("T")

DEFAULT_QUANTUM = 64.0
"""Rows of the largest micro-batch; queues whose cost is time need one in nanoseconds."""

_COMPACT_FROM = 64
_FEW = 4
_NEVER_NS = 1 << 63


class _Lane(Generic[T]):
    """One tenant's waiting work, a heap by the order's key. What left from the middle stays
    in it until it surfaces; its ticket tells."""

    __slots__ = ("cost", "deficit", "heap", "length", "tenant", "weight")

    def __init__(self, tenant: Tenant) -> None:
        self.tenant, self.weight = tenant, tenant.weight
        self.heap: list[tuple[int, int, Entry[T]]] = []
        self.deficit = self.cost = 0.0
        self.length = 0

    def head(self) -> Entry[T]:
        heap = self.heap
        while heap[0][2].ticket != heap[0][1]:
            heapq.heappop(heap)
        return heap[0][2]

    def head_charge(self, now_ns: int) -> float:
        head = self.head()
        return charge(head.cost, head.level, now_ns - head.arrived_ns)

    def charges(self) -> float:
        """Of all that waits in it, before any aging."""
        live = (entry for _, ticket, entry in self.heap if entry.ticket == ticket)
        return sum(charge(entry.cost, entry.level, 0) for entry in live)


class WorkQueue(Generic[T]):
    """Entries that wait for a place, `DeficitRing` between tenants, an `Order` within each.

    Without `tenants` everybody is one flow and the order alone decides. `rows`,
    `payload_bytes` and `urgent` (how many are of the most urgent priority) are of what
    waits. Not thread-safe.
    Weakness: fair within this queue only; two models on the same GPUs are two queues.
    """

    def __init__(
        self, order: Order, tenants: Tenants | None = None, quantum: float = DEFAULT_QUANTUM
    ) -> None:
        self.rows = self.payload_bytes = self.urgent = 0
        self._order, self._tenants = order, tenants or Tenants()
        self._ring: DeficitRing[_Lane[T]] = DeficitRing(quantum)
        self._lanes: dict[str, _Lane[T]] = {}
        self._arrivals: deque[tuple[int, Entry[T]]] = deque()
        self._deadlines: list[tuple[int, int, Entry[T]]] = []
        self._tickets = count(1)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        waiting = ", ".join(f"{n} {lane.length}" for n, lane in self._lanes.items() if lane.length)
        return f"<WorkQueue {self._order.name} {self._length} entries: {waiting or 'empty'}>"

    # in and out

    def add(self, entry: Entry[T]) -> None:
        lane = self._lanes.get(entry.tenant) or self._lane(entry.tenant)
        if not lane.length:
            lane.heap.clear()
            self._ring.join(lane)
        self._ring.expect(entry.cost, entry.level)
        lane.length += 1
        lane.cost += entry.cost
        self._length += 1
        self.rows += entry.rows
        self.payload_bytes += entry.payload_bytes
        self.urgent += entry.priority <= URGENT_PRIORITY
        entry.ticket = ticket = next(self._tickets)
        heapq.heappush(lane.heap, (self._order.key(entry), ticket, entry))
        self._arrivals.append((ticket, entry))
        if entry.deadline_ns:
            heapq.heappush(self._deadlines, (entry.deadline_ns, ticket, entry))

    def remove(self, entry: Entry[T]) -> bool:
        """Take `entry` out, e.g. when it is cancelled. False when it was not queued."""
        if not entry.ticket:
            return False
        self._drop(self._lanes.get(entry.tenant) or self._lane(entry.tenant), entry)
        return True

    def first(self, now_ns: int = 0) -> Entry[T] | None:
        """What `take` would return."""
        lane = self._ring.next(now_ns)
        return lane.head() if lane else None

    def take(self, now_ns: int = 0) -> Entry[T] | None:
        """The next entry, charged to its tenant; None when nothing waits."""
        lane = self._ring.next(now_ns)
        if lane is None:
            return None
        entry = lane.head()
        if len(self._ring) > 1:
            self._ring.charge(lane, lane.head_charge(now_ns))
        self._drop(lane, entry)
        return entry

    def take_batch(self, max_rows: int, max_bytes: int, now_ns: int = 0) -> list[Entry[T]]:
        """The next entries, as many as go together; one even when it is larger than that."""
        if self.rows <= max_rows and self.payload_bytes <= max_bytes:
            return self._take_all()
        taken: list[Entry[T]] = []
        rows = size = 0
        while (lane := self._ring.next(now_ns)) is not None:
            entry = lane.head()
            rows, size = rows + entry.rows, size + entry.payload_bytes
            if taken and (rows > max_rows or size > max_bytes):
                break
            if len(self._ring) > 1:
                self._ring.charge(lane, lane.head_charge(now_ns))
            self._drop(lane, entry)
            taken.append(entry)
        return taken

    def hopeless(self, now_ns: int, service_ns: int = 0) -> list[Entry[T]]:
        """Take out what cannot be done by its deadline even if it started now."""
        found: list[Entry[T]] = []
        while self.earliest_deadline_ns() < now_ns + service_ns:
            entry = self._deadlines[0][2]
            self.remove(entry)
            found.append(entry)
        return found

    def set_order(self, order: Order) -> None:
        """Sort what waits anew. Nothing is lost, no tenant's turn is touched."""
        self._order = order
        for lane in self._lanes.values():
            lane.heap = [
                (order.key(entry), ticket, entry)
                for _, ticket, entry in lane.heap
                if entry.ticket == ticket
            ]
            heapq.heapify(lane.heap)

    # what waits

    @property
    def order(self) -> Order:
        return self._order

    def entries(self) -> Iterator[Entry[T]]:
        """All that waits, by arrival."""
        return (entry for ticket, entry in list(self._arrivals) if entry.ticket == ticket)

    def oldest_ns(self) -> int:
        """Arrival of the longest waiting entry. The queue must not be empty."""
        while self._arrivals[0][1].ticket != self._arrivals[0][0]:
            self._arrivals.popleft()
        return self._arrivals[0][1].arrived_ns

    @property
    def fresh(self) -> bool:
        """As good as a new one: nothing waits, nothing that left is remembered, and few tenants
        were here, all of whom are gone through for each batch."""
        if self._length or self._arrivals or self._deadlines or len(self._lanes) > _FEW:
            return False
        return not any(lane.heap for lane in self._lanes.values())

    def earliest_deadline_ns(self) -> int:
        """2^63 when nothing that waits has a deadline."""
        while self._deadlines and self._deadlines[0][2].ticket != self._deadlines[0][1]:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else _NEVER_NS

    def waiting_cost(self, tenant: str | None = None) -> float:
        """Of one tenant's flow, or of all."""
        if tenant is not None:
            return self._lane(tenant).cost
        return sum(lane.cost for lane in self._lanes.values())

    def least(self, of: Mapping[str, float]) -> float:
        """The least that `of` has for anybody who waits here, 0 for names that it has not."""
        found = math.inf
        for name, lane in self._lanes.items():
            if lane.length and (its := of.get(name, 0.0)) < found:
                found = its
        return found

    def waiting(self) -> list[tuple[Tenant, float]]:
        """Who has work here, and of which cost."""
        return [(lane.tenant, lane.cost) for lane in self._lanes.values() if lane.length]

    def cost_ahead(self, tenant: str, cost: float) -> float:
        """Expected cost served before a new entry, if no more work came.

        The fluid limit of the ring: while this tenant is served its queue, every other
        one is served its weight's part of that, or all it has.
        """
        own = self._lane(tenant)
        share = (own.cost + cost) / own.weight
        others = (
            min(lane.cost, share * lane.weight)
            for lane in self._lanes.values()
            if lane is not own and lane.length
        )
        return own.cost + sum(others)

    def cost_bound(self, tenant: str, cost: float, level: int) -> float:
        """Cost that is served at most before a new entry, whatever comes after it, as long as
        no larger piece comes and the order lets nothing of its own tenant overtake it."""
        own = self._lane(tenant)
        self._ring.expect(cost, level)
        mine = charge(cost, level, 0)
        all_lanes = [self._lane(t.name) for t in self._tenants.all()]
        return self._ring.bound(own, own.charges() + mine, mine, all_lanes)

    # steps

    def _take_all(self) -> list[Entry[T]]:
        """Everything goes at once: nobody goes before anybody, nothing is left to be fair about.
        In the order's order all the same."""
        waiting = [item for lane in self._lanes.values() for item in lane.heap]
        taken = [entry for _, ticket, entry in sorted(waiting) if entry.ticket == ticket]
        for entry in taken:
            entry.ticket = 0
        for lane in self._lanes.values():
            lane.heap.clear()
            lane.length, lane.cost, lane.deficit = 0, 0.0, 0.0
        self._ring.clear()
        self._arrivals.clear()
        self._deadlines.clear()
        self._length = self.rows = self.payload_bytes = self.urgent = 0
        return taken

    def _lane(self, name: str) -> _Lane[T]:
        tenant = self._tenants.of(name)
        lane = self._lanes.get(tenant.name)
        if lane is None:
            lane = self._lanes[tenant.name] = _Lane(tenant)
        return lane

    def _drop(self, lane: _Lane[T], entry: Entry[T]) -> None:
        entry.ticket = 0
        lane.length -= 1
        lane.cost -= entry.cost
        self._length -= 1
        self.rows -= entry.rows
        self.payload_bytes -= entry.payload_bytes
        self.urgent -= entry.priority <= URGENT_PRIORITY
        if not lane.length:
            lane.cost = 0.0  # what rounding left
            self._ring.leave(lane)
        if len(self._arrivals) > 2 * self._length + _COMPACT_FROM:
            self._compact()

    def _compact(self) -> None:
        """Entries that left from the middle are forgotten once they outnumber the rest."""
        self._arrivals = deque(item for item in self._arrivals if item[1].ticket == item[0])
        self._deadlines = [item for item in self._deadlines if item[2].ticket == item[1]]
        heapq.heapify(self._deadlines)
        for lane in self._lanes.values():
            lane.heap = [item for item in lane.heap if item[2].ticket == item[1]]
            heapq.heapify(lane.heap)
