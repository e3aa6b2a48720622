"""A front door in the simulator: the queue of one model, and what it may send."""

from collections.abc import Callable
from typing import NamedTuple

from sits_scheduling.batching import BatchQueue, Capacity
from sits_scheduling.entry import Entry
from sits_scheduling.gate import Gate
from sits_scheduling.next_free import NextFree
from sits_sim.batch import Batch
from sits_sim.bounds import BoundWatch
from sits_sim.clock import Clock
from sits_sim.ledger import End

Close = Callable[[int, End], None]


class Room(NamedTuple):
    """Instances of this front door, and how many of them are idle."""

    parallel: int
    idle: int


class Front:
    """Takes requests, sends batches while its credits last, gets the answers.

    `window` and `instances` are its credits, as `sits_preprocess.dispatch_link` keeps them.
    Without a `gate` everything is admitted. `close` is told of requests that end here, a
    `watch` looks on.
    """

    def __init__(
        self,
        number: int,
        clock: Clock,
        queue: BatchQueue[int],
        window: int,
        instances: int,
        send: Callable[[Batch], None],
        close: Close,
        gate: Gate | None = None,
        watch: BoundWatch | None = None,
    ) -> None:
        self.number, self._clock, self._queue = number, clock, queue
        self._window, self._instances = window, instances
        self._send, self._close, self._gate, self.watch = send, close, gate, watch
        self._in_flight: dict[Batch, None] = {}
        self._next_free = NextFree()
        self._wake_ns = 0
        self._judged: dict[int, Entry[int]] = {}

    def __repr__(self) -> str:
        return f"<Front {self.number} {self._queue!r}, {len(self._in_flight)} batches out>"

    def set_credits(self, window: int, instances: int) -> None:
        self._window, self._instances = window, instances
        self.pump()

    def arrive(self, entry: Entry[int]) -> None:
        if self._gate is not None:
            if self._refused(self._gate, entry):
                self._close(entry.item, End.REFUSED)
                return
            self._judged[entry.item] = entry
        if self.watch is not None:
            self.watch.coming(entry)
        self._queue.add(entry)
        self.pump()

    def answered(self, batch: Batch, run_ns: int) -> None:
        """A batch came back after it ran for `run_ns`; 0 = it did not run."""
        del self._in_flight[batch]
        if self._gate is not None:
            self._gate.returned(
                batch.judged, batch.rows, batch.instance, batch.expected_ns, run_ns,
                self._clock.now_ns,
            )  # fmt: skip
        self._next_free.ran(run_ns, batch.rows, self._clock.now_ns)
        self.pump()

    def pump(self) -> None:
        """Send what may leave now, and look again when time alone may change that."""
        now = self._clock.now_ns
        self._drop_late(now)
        capacity = self._capacity()
        while (reason := self._queue.should_close(now, capacity)) is not None:
            closed = self._queue.take(reason, now)
            batch = Batch(closed.items, closed.rows, closed.payload_bytes, self.number, now)
            if self._gate is not None:
                batch.expected_ns = self._gate.sent(batch.rows)
                batch.judged = [self._judged.pop(request) for request in batch.requests]
            if self.watch is not None:
                self.watch.taken(closed.items)
            self._in_flight[batch] = None
            self._send(batch)
            capacity = self._capacity()
        wake = self._queue.next_wakeup_ns(now, capacity)
        if wake is not None and not now < self._wake_ns <= wake:
            self._wake_ns = max(wake, now + 1)
            self._clock.after(self._wake_ns - now, self.pump)

    def _refused(self, gate: Gate, entry: Entry[int]) -> bool:
        room = Room(self._instances, max(0, self._instances - len(self._in_flight)))
        full_rows = self._queue.policy.max_rows or entry.rows
        now = self._clock.now_ns
        return gate.judge(entry, self._queue, room, full_rows, now) is not None

    def _drop_late(self, now: int) -> None:
        """What has passed its deadline is not run."""
        if self._gate is None:
            return
        for entry in self._queue.hopeless(now):
            self._gate.gave_up(entry, now)
            del self._judged[entry.item]
            if self.watch is not None:
                self.watch.dropped(entry.item)
            self._close(entry.item, End.EXPIRED)

    def _capacity(self) -> Capacity:
        out = len(self._in_flight)
        room, idle = max(0, self._window - out), max(0, self._instances - out)
        oldest = next(iter(self._in_flight), None)
        oldest_ns, rows = (oldest.closed_ns, oldest.rows) if oldest is not None else (0, 0)
        least_ns = self._queue.policy.least_run_ns
        return self._next_free.capacity(room, idle, oldest_ns, rows, least_ns)
