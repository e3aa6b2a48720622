"""The queues of one model at the front door, and what it may send."""

from collections.abc import Hashable

from sits_core.clock import now_ns
from sits_core.errors import Unavailable
from sits_preprocess.batch_message import batch_key
from sits_preprocess.catalog import Model
from sits_preprocess.request import Request
from sits_preprocess.settings import PreprocessSettings
from sits_scheduling.batching import (
    DEFAULT_PRIORITY,
    BatchPolicy,
    BatchQueue,
    Capacity,
    ClosedBatch,
    Entry,
)

MAX_PRIORITY = 16
"""Less urgent than this is all the same: each level is a queue of its own."""

_SMOOTHING = 0.2


class Live:
    """A request the engine has taken and not answered yet."""

    __slots__ = ("__weakref__", "batch_id", "done", "entry", "key", "position", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.done = False
        self.batch_id = 0
        self.key: Hashable = None
        self.position = 0
        self.entry = Entry(
            item=self,
            rows=request.rows,
            payload_bytes=request.payload_bytes,
            arrived_ns=request.queued_ns,
            deadline_ns=request.deadline.unix_ns if request.deadline else 0,
            priority=min(request.priority or DEFAULT_PRIORITY, MAX_PRIORITY),
        )


class ModelBatcher:
    """One queue per batch key; the one whose head waited longest goes first.

    Not thread-safe: the engine's lock covers it.
    """

    def __init__(self, policy: BatchPolicy, max_queue: int) -> None:
        self._policy, self._max_queue = policy, max_queue
        self._queues: dict[Hashable, BatchQueue[Live]] = {}
        self._length = 0
        self.run_ns = 0
        self.last_result_ns = 0
        self.wake_ns = 0
        self.unserved_since_ns = 0

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return f"<ModelBatcher {self._length}/{self._max_queue} in {len(self._queues)} queues>"

    def add(self, live: Live) -> None:
        """Raises `Unavailable` when the queue is full."""
        if self._length >= self._max_queue:
            raise Unavailable("Exceeds maximum queue size", reason="QUEUE_FULL")
        live.key = batch_key(live.request, self._policy.max_rows > 0)
        queue = self._queues.get(live.key)
        if queue is None:
            queue = self._queues[live.key] = BatchQueue(self._policy)
        queue.add(live.entry)
        self._length += 1

    def set_policy(self, policy: BatchPolicy, max_queue: int) -> None:
        """The model was reloaded, perhaps with another configuration."""
        self._policy, self._max_queue = policy, max_queue
        for queue in self._queues.values():
            queue.policy = policy

    def remove(self, live: Live) -> None:
        """Take a request out if it is still queued."""
        queue = self._queues.get(live.key)
        if queue is not None and queue.remove(live.entry):
            self._length -= 1
            self._forget_if_empty(live.key, queue)

    def next_batch(self, now: int, capacity: Capacity) -> ClosedBatch[Live] | None:
        """The batch to send now, or None."""
        if self._length == 0 or capacity.room <= 0:
            return None
        for key, queue in self._oldest_first():
            reason = queue.should_close(now, capacity)
            if reason is not None:
                batch = queue.take(reason)
                self._length -= len(batch.items)
                self._forget_if_empty(key, queue)
                return batch
        return None

    def next_wakeup_ns(self, now: int, capacity: Capacity) -> int | None:
        times = [q.next_wakeup_ns(now, capacity) for q in self._queues.values()]
        return min((t for t in times if t is not None), default=None)

    def drop_all(self) -> list[Live]:
        dropped = [entry.item for queue in self._queues.values() for entry in queue.entries()]
        self._queues.clear()
        self._length = 0
        return dropped

    def learn(self, run_ns: int) -> None:
        """A batch ran for `run_ns`."""
        if run_ns > 0:
            known = self.run_ns or run_ns
            self.run_ns = int(known + _SMOOTHING * (run_ns - known))
        self.last_result_ns = now_ns()

    def _oldest_first(self) -> list[tuple[Hashable, BatchQueue[Live]]]:
        queues = list(self._queues.items())
        if len(queues) > 1:
            queues.sort(key=lambda item: item[1].oldest_ns())
        return queues

    def _forget_if_empty(self, key: Hashable, queue: BatchQueue[Live]) -> None:
        if not len(queue):
            del self._queues[key]


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
