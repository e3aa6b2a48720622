"""The executors that placement decides over, as arrays kept up to date by reservations."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sits_scheduling.affinity import AffinityMap, Place

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Executor:
    """Who it is and where it runs; `device` as topology names it."""

    id: str
    host: str = ""
    device: str = ""


@dataclass(frozen=True, slots=True)
class Candidates:
    """One decision's view. All arrays have shape [executors] and the same order.

    `batches` and `rows`: reserved for all models; `model_batches`: for this model.
    `slots`: batches of this model it takes at once; `parallel`: how many run at once.
    `affinity`: 0..1 from the payload's place, NaN where nothing is known.
    `allowed`: connected, serves the model, not excluded.
    """

    batches: Floats
    rows: Floats
    model_batches: Floats
    slots: Floats
    parallel: Floats
    affinity: Floats
    allowed: Flags

    def __len__(self) -> int:
        return len(self.allowed)


class _ModelColumns:
    """What the table knows about one model."""

    def __init__(self, size: int) -> None:
        self.slots = np.zeros(size)
        self.parallel = np.ones(size)
        self.batches = np.zeros(size)
        self.micro_batch_rows = np.zeros(size)

    def grow(self, size: int) -> None:
        for name, fill in (("slots", 0), ("parallel", 1), ("batches", 0), ("micro_batch_rows", 0)):
            setattr(self, name, _grown(getattr(self, name), size, fill))


class Reservation:
    """Load held on an executor until `release`, which is right on every path, twice too."""

    __slots__ = ("_release", "executor")

    def __init__(self, executor: str, release: Callable[[], None]) -> None:
        self.executor = executor
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()


class ExecutorTable:
    """Executors, the models they serve and the load reserved on them.

    Reading is a view of arrays, so that a decision over many executors costs a few array
    operations. Not thread-safe: its owner holds a lock.
    """

    def __init__(self) -> None:
        self._executors: list[Executor | None] = []
        self._index: dict[str, int] = {}
        self._batches = np.zeros(0)
        self._rows = np.zeros(0)
        self._models: dict[str, _ModelColumns] = {}
        self._affinity: dict[Place, Floats] = {}
        self._map = AffinityMap()

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, executor_id: str) -> bool:
        return executor_id in self._index

    def __repr__(self) -> str:
        return f"<ExecutorTable {len(self)} executors, {self.batches_in_flight()} batches>"

    def add(self, executor: Executor) -> None:
        """Put in an executor without models. Ids are unique for the life of a process."""
        position = self._free_position()
        self._executors[position] = executor
        self._index[executor.id] = position
        self._affinity.clear()

    def remove(self, executor_id: str) -> None:
        """Take it out with all its load; releases that come later change nothing."""
        position = self._index.pop(executor_id)
        self._executors[position] = None
        self._batches[position] = self._rows[position] = 0
        for columns in self._models.values():
            columns.slots[position] = columns.batches[position] = 0
        self._affinity.clear()

    def serve(
        self, executor_id: str, model: str, slots: int, parallel: int, micro_batch_rows: int = 0
    ) -> None:
        """State what it takes of `model`; 0 slots = it does not serve it (any more)."""
        columns = self._models.setdefault(model, _ModelColumns(len(self._executors)))
        position = self._index[executor_id]
        columns.slots[position] = slots
        columns.parallel[position] = max(1, parallel)
        columns.micro_batch_rows[position] = micro_batch_rows

    def set_affinity(self, weights: AffinityMap) -> None:
        self._map = weights
        self._affinity.clear()

    def candidates(self, model: str, place: Place, excluded: Collection[str] = ()) -> Candidates:
        columns = self._models.get(model) or _ModelColumns(len(self._executors))
        allowed = columns.slots > 0
        for executor_id in excluded:
            if (position := self._index.get(executor_id)) is not None:
                allowed[position] = False
        return Candidates(
            self._batches, self._rows, columns.batches, columns.slots, columns.parallel,
            self._affinity_from(place), allowed,
        )  # fmt: skip

    def reserve(self, position: int, model: str, rows: int) -> Reservation:
        """Hold one batch of `rows` on the candidate at `position`."""
        executor = self._executors[position]
        assert executor is not None, "a candidate that is allowed is present"  # noqa: S101
        self._change(position, model, 1, rows)

        def release() -> None:
            if self._index.get(executor.id) == position:
                self._change(position, model, -1, -rows)

        return Reservation(executor.id, release)

    def capacity(self, model: str) -> tuple[int, int, int]:
        """Slots, parallel runs, and the smallest micro-batch limit of all executors."""
        columns = self._models.get(model)
        if columns is None or not (serving := columns.slots > 0).any():
            return 0, 0, 0
        limits = columns.micro_batch_rows[serving]
        limits = limits[limits > 0]
        smallest = int(limits.min()) if len(limits) else 0
        return int(columns.slots.sum()), int(columns.parallel[serving].sum()), smallest

    def batches_in_flight(self, executor_id: str | None = None) -> int:
        if executor_id is None:
            return int(self._batches.sum())
        return int(self._batches[self._index[executor_id]])

    def rows_in_flight(self, executor_id: str) -> int:
        return int(self._rows[self._index[executor_id]])

    def _affinity_from(self, place: Place) -> Floats:
        known = self._affinity.get(place)
        if known is None:
            known = np.array(
                [
                    self._map.affinity(place, e.host, e.device) if e else np.nan
                    for e in self._executors
                ]
            )
            self._affinity[place] = known
        return known

    def _change(self, position: int, model: str, batches: int, rows: int) -> None:
        self._batches[position] += batches
        self._rows[position] += rows
        self._models[model].batches[position] += batches

    def _free_position(self) -> int:
        for position, executor in enumerate(self._executors):
            if executor is None:
                return position
        size = max(8, 2 * len(self._executors))
        first = len(self._executors)
        self._executors += [None] * (size - first)
        self._batches, self._rows = _grown(self._batches, size), _grown(self._rows, size)
        for columns in self._models.values():
            columns.grow(size)
        return first


def _grown(array: Floats, size: int, fill: float = 0.0) -> Floats:
    bigger = np.full(size, fill)
    bigger[: len(array)] = array
    return bigger
