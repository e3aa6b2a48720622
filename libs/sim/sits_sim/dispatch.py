"""The dispatcher in the simulator: asks for a place, delivers, brings back, moves what is lost."""

import random
from collections.abc import Callable, Sequence

from sits_scheduling.affinity import AffinityMap, Place
from sits_scheduling.candidates import Executor, ExecutorTable
from sits_scheduling.entry import Entry
from sits_scheduling.placing import Batch as Placeable
from sits_scheduling.placing import Placing
from sits_scheduling.queueing import WorkQueue
from sits_scheduling.service_times import ServiceTimes
from sits_scheduling.switchboard import Switchboard
from sits_sim.batch import MODEL, Batch
from sits_sim.clock import Clock
from sits_sim.cluster import Cluster


class Dispatcher:
    """One table over all devices. `deliver` brings a batch to a device by its number, `fail`
    is told of a batch that was lost more than `max_moves` times.
    """

    def __init__(
        self,
        clock: Clock,
        cluster: Cluster,
        strategy: str,
        slots: int,
        places: Sequence[Place],
        rng: random.Random,
        deliver: Callable[[Batch, int], None],
        fail: Callable[[Batch], None],
        max_moves: int = 2,
    ) -> None:
        self._clock, self._slots, self._places, self._max_moves = clock, slots, places, max_moves
        self._deliver, self._fail = deliver, fail
        self.table = ExecutorTable()
        self.placing = Placing(self.table, ServiceTimes(), Switchboard(strategy, rng), rng)
        order = self.placing.strategies.strategy(MODEL).order
        self._pending: WorkQueue[Batch] = WorkQueue(order)
        self._cluster = cluster
        self._numbers: dict[str, int] = {}
        self._ids: dict[int, str] = {}
        self.decisions = 0
        for gpu in cluster.gpus:
            self.join(gpu.index)
        weights = {host: shape.weights for host, shape in cluster.hosts.items()}
        self.table.set_affinity(AffinityMap(weights))

    def __repr__(self) -> str:
        return f"<Dispatcher {len(self._pending)} pending, {self.table!r}>"

    # batches

    def batch(self, batch: Batch) -> None:
        """Place it, or keep it until there is room."""
        if len(self._pending) or not self._place(batch):
            self._wait(batch)

    def result(self, batch: Batch, ran_ns: int) -> None:
        """It ran: its load is released, its time is learnt, what waits may be placed."""
        if batch.reservation is not None:
            now = self._clock.now_ns
            self.placing.finished(self._placeable(batch), batch.reservation, ran_ns, now)
        self.pump()

    def lost(self, batches: Sequence[Batch]) -> None:
        """The executor that held them is gone: they go to others."""
        for batch in batches:
            if batch.reservation is not None:
                batch.reservation.release(self._clock.now_ns)
            batch.moves += 1
            if batch.moves > self._max_moves:
                self._fail(batch)
            elif not self._place(batch):
                self._wait(batch)

    def pump(self) -> None:
        while (waiting := self._pending.first(self._clock.now_ns)) and self._place(waiting.item):
            self._pending.take(self._clock.now_ns)

    # executors

    def leave(self, device: int) -> None:
        self.placing.lost(self._ids.pop(device))

    def join(self, device: int) -> None:
        """A process on that device; its id is new, as that of any process is."""
        gpu = self._cluster.gpus[device]
        executor_id = f"{gpu.id}~{len(self._numbers)}" if gpu.id in self._numbers else gpu.id
        self._ids[device], self._numbers[executor_id] = executor_id, device
        self.table.add(Executor(executor_id, gpu.host, gpu.device))
        self.table.serve(executor_id, MODEL, self._slots, 1)
        self.pump()

    def credits(self) -> tuple[int, int]:
        """Batches that all executors take at once, and how many of them run."""
        slots, parallel, _ = self.table.capacity(MODEL)
        return slots, parallel

    # steps

    def _place(self, batch: Batch) -> bool:
        placed = self.placing.place(self._placeable(batch), self._clock.now_ns)
        if placed is None:
            return False
        self.decisions += 1
        batch.reservation = placed.reservation
        self._deliver(batch, self._numbers[placed.executor])
        return True

    def _wait(self, batch: Batch) -> None:
        self._pending.add(Entry(batch, batch.rows, batch.payload_bytes, batch.closed_ns))

    def _placeable(self, batch: Batch) -> Placeable:
        return Placeable(MODEL, batch.rows, batch.payload_bytes, self._places[batch.front])
