"""The dispatcher in the simulator: asks the strategy, reserves, delivers, moves what is lost."""

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from sits_scheduling.affinity import AffinityMap, Place
from sits_scheduling.candidates import Executor, ExecutorTable
from sits_scheduling.strategies import STRATEGIES
from sits_sim.cluster import Cluster
from sits_sim.device import Batch

MODEL: Final = "model/1"


class Dispatcher:
    """One table over all devices. `deliver` brings a batch to a device by its number, `fail`
    is told of a batch that nobody could run.
    """

    def __init__(
        self,
        cluster: Cluster,
        strategy: str,
        slots: int,
        places: Sequence[Place],
        rng: random.Random,
        deliver: Callable[[Batch, int], None],
        fail: Callable[[Batch], None],
        max_moves: int = 2,
    ) -> None:
        self.table = ExecutorTable()
        self._strategy = STRATEGIES[strategy](rng)
        self._slots, self._places, self._max_moves = slots, places, max_moves
        self._deliver, self._fail = deliver, fail
        self._pending: deque[Batch] = deque()
        self._numbers = {gpu.id: gpu.index for gpu in cluster.gpus}
        self.decisions = 0
        for gpu in cluster.gpus:
            self.table.add(Executor(gpu.id, gpu.host, gpu.device))
            self.table.serve(gpu.id, MODEL, slots, 1)
        weights = {host: shape.weights for host, shape in cluster.hosts.items()}
        self.table.set_affinity(AffinityMap(weights))

    def __repr__(self) -> str:
        return f"<Dispatcher {self._strategy!r} {len(self._pending)} pending, {self.table!r}>"

    def batch(self, batch: Batch) -> None:
        """Place it, or keep it until there is room."""
        if self._pending or not self._place(batch):
            self._pending.append(batch)

    def result(self, batch: Batch) -> None:
        """It ran: its load is released, what waits may be placed."""
        self._release(batch)
        self.pump()

    def lost(self, batches: Sequence[Batch]) -> None:
        """The executor that held them is gone: they go to others."""
        for batch in batches:
            self._release(batch)
            batch.moves += 1
            if batch.moves > self._max_moves:
                self._fail(batch)
            elif not self._place(batch):
                self._pending.appendleft(batch)

    def leave(self, executor_id: str) -> None:
        self.table.serve(executor_id, MODEL, 0, 0)

    def join(self, executor_id: str) -> None:
        self.table.serve(executor_id, MODEL, self._slots, 1)
        self.pump()

    def pump(self) -> None:
        while self._pending and self._place(self._pending[0]):
            self._pending.popleft()

    def _place(self, batch: Batch) -> bool:
        candidates = self.table.candidates(MODEL, self._places[batch.front])
        decision = self._strategy.place(candidates)
        if decision is None:
            return False
        self.decisions += 1
        batch.reservation = self.table.reserve(decision.choice, MODEL, batch.rows)
        self._deliver(batch, self._numbers[batch.reservation.executor])
        return True

    @staticmethod
    def _release(batch: Batch) -> None:
        if batch.reservation is not None:
            batch.reservation.release()
