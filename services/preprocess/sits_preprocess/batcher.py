"""The queues of one model at the front door, and what it may send."""

from collections.abc import Hashable, Sequence
from heapq import heapify, heappop
from typing import Final, NamedTuple

from sits_core.errors import Unavailable
from sits_preprocess.catalog import Model
from sits_preprocess.gates import Refused
from sits_preprocess.request import Request
from sits_preprocess.settings import PreprocessSettings
from sits_scheduling.batching import (
    DEFAULT_PRIORITY,
    BatchPolicy,
    BatchQueue,
    Capacity,
    ClosedBatch,
    CloseReason,
    Entry,
)
from sits_scheduling.gate import NOTHING_NEEDED, Gate, Needs, Room
from sits_scheduling.next_free import NextFree
from sits_scheduling.quotas import Refusal
from sits_scheduling.tenants import Tenants
from sits_scheduling.turns import Turns

MAX_PRIORITY: Final = 16
"""Less urgent than this is all the same: each level is a queue of its own."""

_LEARN_EVERY_NS: Final = 5_000_000
"""Run times are learnt from one batch in that time: more would cost and teach nothing."""

QUEUE_FULL: Final = Unavailable("Exceeds maximum queue size", reason="QUEUE_FULL")


class Ran(NamedTuple):
    """How long a batch ran, 0 = it did not, how large it was, and where."""

    run_ns: int
    rows: int
    instance: str


class ModelBatcher:
    """One queue per batch key; tenants take `Turns` among them.

    Not thread-safe: the engine's lock covers it.
    """

    def __init__(
        self, policy: BatchPolicy, max_queue: int, tenants: Tenants, gate: Gate | None = None
    ) -> None:
        self.gate = gate
        self._policy, self._max_queue, self._tenants = policy, max_queue, tenants
        self._queues: dict[Hashable, BatchQueue[Request]] = {}
        self._turns = Turns(tenants)
        self._spare: BatchQueue[Request] | None = None
        self._entries: dict[Request, Entry[Request]] = {}
        self.next_free = NextFree()
        self._learn_again_ns = 0
        self.wake_ns = 0
        self.unserved_since_ns = 0
        self.sure_ns = self.sure_asked_ns = 0
        self.refused: Refused | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<ModelBatcher {len(self)}/{self._max_queue} in {len(self._queues)} queues>"

    def judge(self, request: Request, room: Room, now: int, *, take: bool = True) -> Refusal | None:
        """Why it may not queue, if so."""
        if self.gate is None:
            return None
        rows = max(1, self._policy.max_rows)
        return self.gate.judge(request, self, room, rows, now, take=take)

    def needs(self, request: Request, room: Room) -> Needs:
        """Of all requests that come together with it."""
        if self.gate is None:
            return NOTHING_NEEDED
        return self.gate.needs(request, self, room, max(1, self._policy.max_rows))

    def sure_after(self, room: Room, now: int) -> int:
        """Deadlines from this moment on are met for sure, as far as can be predicted."""
        if self.gate is None:
            return now
        rows = sum([queue.rows for queue in self._queues.values()])
        return now + int(self.gate.surely_ns(rows, room, max(1, self._policy.max_rows)))

    @property
    def least_run_ns(self) -> int:
        """No batch leaves ahead of shorter runs."""
        return self._policy.least_run_ns

    @property
    def full(self) -> bool:
        return len(self._entries) >= self._max_queue

    @property
    def places(self) -> int:
        """So many more may queue."""
        return self._max_queue - len(self._entries)

    def add(self, request: Request) -> None:
        """Queue it. The caller has looked whether there is room."""
        queue = self._queues.get(request.key)
        if queue is None:
            queue = self._queues[request.key] = self._new_queue()
        entry = self._entries[request] = Entry(
            request,
            request.rows,
            request.payload_bytes,
            request.queued_ns,
            request.deadline.unix_ns if request.deadline is not None else 0,
            min(request.priority or DEFAULT_PRIORITY, MAX_PRIORITY),
            request.tenant,
        )
        queue.add(entry)
        self._turns.came(request.tenant)

    def cost_ahead(self, tenant: str, cost: float) -> float:
        """Rows that go before a new request, over all queues."""
        queues = self._queues.values()
        if len(queues) > 1:
            return self._turns.cost_ahead(queues, tenant, cost)
        return sum([queue.cost_ahead(tenant, cost) for queue in queues])

    def waiting_cost(self, tenant: str) -> float:
        """Rows of a tenant's flow that wait."""
        return sum([queue.waiting_cost(tenant) for queue in self._queues.values()])

    def set_policy(self, policy: BatchPolicy, max_queue: int) -> None:
        """The model was reloaded, perhaps with another configuration."""
        self._policy, self._max_queue, self._spare = policy, max_queue, None
        for queue in self._queues.values():
            queue.policy = policy

    def remove(self, request: Request) -> None:
        """Take a request out if it is still queued."""
        entry = self._entries.pop(request, None)
        if entry is not None:
            self._queues[request.key].remove(entry)
            self._forget_if_empty(request.key)

    def next_batch(self, now: int, capacity: Capacity) -> ClosedBatch[Request] | None:
        """The batch to send now, or None."""
        if not self._entries or capacity.room <= 0:
            return None
        if len(self._queues) > 1:
            return self._next_of_several(now, capacity)
        ((key, queue),) = self._queues.items()
        reason = queue.should_close(now, capacity)
        return None if reason is None else self._take(key, queue, reason, now)[0]

    def _next_of_several(self, now: int, capacity: Capacity) -> ClosedBatch[Request] | None:
        turns, queues = self._turns, list(self._queues.items())
        ranked = [(turns.key(queue), place) for place, (_, queue) in enumerate(queues)]
        heapify(ranked)  # most often the first one may leave
        while ranked:
            (turn, _), place = heappop(ranked)
            key, queue = queues[place]
            reason = queue.should_close(now, capacity)
            if reason is not None:
                batch, entries = self._take(key, queue, reason, now)
                run_ns = self.gate.run_ns(batch.rows) if self.gate is not None else 0.0
                turns.took(turn, entries, run_ns, now)
                return batch
        return None

    def _take(
        self, key: Hashable, queue: BatchQueue[Request], reason: CloseReason, now: int
    ) -> tuple[ClosedBatch[Request], list[Entry[Request]]]:
        batch = queue.take(reason, now)
        entries = [self._entries.pop(request) for request in batch.items]
        self._forget_if_empty(key)
        return batch, entries

    def next_wakeup_ns(self, now: int, capacity: Capacity) -> int | None:
        times = [queue.next_wakeup_ns(now, capacity) for queue in self._queues.values()]
        return min((t for t in times if t is not None), default=None)

    def drop_all(self) -> list[Request]:
        dropped = list(self._entries)
        self._entries.clear()
        self._queues.clear()
        return dropped

    def learn(self, part: Sequence[Request], ran: Ran, now: int) -> None:
        """These requests, which ran together, are back."""
        run_ns = ran.run_ns
        if self.gate is not None and now >= self._learn_again_ns and run_ns > 0:
            self._learn_again_ns = now + _LEARN_EVERY_NS
            self.gate.returned(part, ran.rows, ran.instance, 0.0, run_ns, now)
        self.next_free.ran(run_ns, ran.rows, now)

    def _new_queue(self) -> BatchQueue[Request]:
        spare, self._spare = self._spare, None
        if spare is None:  # an empty one is False
            return BatchQueue(self._policy, None, self._tenants)
        return spare

    def _forget_if_empty(self, key: Hashable) -> None:
        """A queue remembers for a while what has left it, and there is no end of keys. One that
        remembers nothing is as good as new, and making one costs half of what adding does."""
        queue = self._queues[key]
        if not len(queue):
            del self._queues[key]
            if queue.fresh:
                self._spare = queue


def policy_of(model: Model, settings: PreprocessSettings) -> BatchPolicy:
    """Batching rules: the model's `dynamic_batching` first, the service's settings else.

    A model with max_batch_size > 0 is batched even without a dynamic_batching section.
    """
    own = model.config.dynamic_batching
    max_bytes = min(settings.preprocess_max_batch_bytes, settings.max_message_bytes // 2)
    if own.max_queue_delay_microseconds or own.preferred_batch_size:
        return BatchPolicy(
            max_rows=model.max_batch_size,
            max_bytes=max_bytes,
            window_ns=own.max_queue_delay_microseconds * 1000,
            close_rows=min(own.preferred_batch_size, default=0),
        )
    return BatchPolicy(
        max_rows=model.max_batch_size,
        max_bytes=max_bytes,
        window_ns=settings.preprocess_batch_window_us * 1000,
        close_requests=settings.preprocess_batch_close_requests,
        close_bytes=settings.preprocess_batch_close_bytes,
    )


def max_queue_of(model: Model, settings: PreprocessSettings) -> int:
    own = model.config.dynamic_batching.default_queue_policy.max_queue_size
    return int(own) or settings.preprocess_max_queue
