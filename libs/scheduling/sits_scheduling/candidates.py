"""The executors that placement decides over, as arrays kept up to date by reservations."""

import math
import random
from collections.abc import Callable, Collection
from typing import Final

import numpy as np
import numpy.typing as npt

from sits_scheduling.affinity import AffinityMap, Place
from sits_scheduling.columns import Flags as Flags
from sits_scheduling.columns import Floats as Floats
from sits_scheduling.columns import Ints as Ints
from sits_scheduling.columns import ModelColumns
from sits_scheduling.loads import UNKNOWN_COST_NS as UNKNOWN_COST_NS
from sits_scheduling.loads import Loads
from sits_scheduling.nearness import Executor as Executor
from sits_scheduling.nearness import Nearness
from sits_scheduling.replacing import Held
from sits_scheduling.view import Candidates as Candidates

_SPEED_STEPS: Final = 20.0
"""Speeds count in steps of a twentieth, so that noise in them does not decide among equals."""
_ROUNDING: Final = 1e-6
"""Of a sum of parts of runs."""


class Reservation:
    """Load held on an executor until `release`, which is right on every path, twice too."""

    __slots__ = ("_release", "executor")

    def __init__(self, executor: str, release: Callable[[int], None]) -> None:
        self.executor = executor
        self._release: Callable[[int], None] | None = release

    def release(self, now_ns: int = 0) -> None:
        """`now_ns` tells when its batch ended; the next one's progress counts from there."""
        release, self._release = self._release, None
        if release is not None:
            release(now_ns)


class ExecutorTable:
    """Executors, the models they serve and the load reserved on them.

    Reading is a view of arrays, so that a decision over many executors costs a few array
    operations. Not thread-safe: its owner holds a lock.
    """

    def __init__(self) -> None:
        self._executors: list[Executor | None] = []
        self._index: dict[str, int] = {}
        self._free: list[int] = []
        self._ids = np.zeros(0, dtype=np.object_)
        self._positions = np.arange(0)
        self._loads = Loads()
        self._models: dict[str, ModelColumns] = {}
        self._nearness = Nearness(self._executors)

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, executor_id: str) -> bool:
        return executor_id in self._index

    def __repr__(self) -> str:
        return f"<ExecutorTable {len(self)} executors, {self.batches_in_flight()} batches>"

    # who is there

    def add(self, executor: Executor) -> None:
        """Put in an executor without models. Ids are unique for the life of a process."""
        position = self._free_position()
        self._executors[position] = executor
        self._ids[position] = executor.id
        self._index[executor.id] = position
        self._nearness.changed()

    def remove(self, executor_id: str) -> None:
        """Take it out with all its load; releases that come later change nothing."""
        position = self._index.pop(executor_id)
        self._executors[position] = None
        self._free.append(position)
        self._loads.clear(position)
        for columns in self._models.values():
            columns.clear(position)
        self._nearness.changed()

    def serve(
        self, executor_id: str, model: str, slots: int, parallel: float, micro_batch_rows: int = 0
    ) -> None:
        """State what it takes of `model`; 0 slots = it does not serve it (any more). Of what runs
        at once the part that is ours counts, where others send there too."""
        columns = self._models.setdefault(model, ModelColumns(len(self._executors)))
        columns.set(self._index[executor_id], slots, parallel, micro_batch_rows)

    def set_affinity(self, weights: AffinityMap) -> None:
        self._nearness.set_map(weights)

    def affinity(self, place: Place, executor_id: str) -> float:
        """0..1 by the published weights, NaN when unknown."""
        position = self._index.get(executor_id)
        return math.nan if position is None else self._nearness.weight(place, position)

    def set_speed(self, executor_id: str, model: str, speed: float) -> None:
        """Its run time over the fleet's, as `ServiceTimes.speed` says. Unknown ids are late."""
        position, columns = self._index.get(executor_id), self._models.get(model)
        if position is not None and columns is not None:
            columns.speed[position] = round(speed * _SPEED_STEPS) / _SPEED_STEPS

    def executor(self, executor_id: str) -> Executor | None:
        """Who it is; None when it is not there."""
        position = self._index.get(executor_id)
        return self._executors[position] if position is not None else None

    def executor_at(self, position: int) -> str:
        """Its id; empty when nobody is there."""
        executor = self._executors[position]
        return executor.id if executor is not None else ""

    def ids(self, positions: Ints) -> npt.NDArray[np.object_]:
        """Executor ids at several positions; of those that left, the last one there."""
        found: npt.NDArray[np.object_] = self._ids[positions]
        return found

    # decisions

    def candidates(
        self,
        model: str,
        place: Place,
        excluded: Collection[str] = (),
        now_ns: int = 0,
        service_ns: float = 0.0,
        payload_bytes: int = 0,
    ) -> Candidates:
        """All positions. `now_ns` lets what runs count only for what is left of it."""
        columns = self._columns(model)
        allowed = columns.slots > 0
        self._exclude(excluded, allowed, None)
        return Candidates(
            self._positions, self._loads.batches, self._loads.rows, columns.batches,
            columns.slots, columns.parallel,
            self._loads.wait_ns(slice(None), columns.parallel, now_ns), columns.speed,
            self._nearness.whole(place), allowed, service_ns, payload_bytes,
        )  # fmt: skip

    def us_per_byte(self) -> Floats:
        """Of handing data on, from each position to each other."""
        return self._nearness.us_per_byte()

    def shortlist(
        self,
        model: str,
        place: Place,
        rng: random.Random,
        size: int,
        excluded: Collection[str] = (),
        now_ns: int = 0,
        service_ns: float = 0.0,
        payload_bytes: int = 0,
    ) -> Candidates:
        """All executors on the payload's host and `size` others, drawn with repetition.

        The cost does not grow with the table. Best of a sample (Mitzenmacher 2001): with
        d = 64 of n, the pick is among the best 1.5 % on average.
        """
        columns = self._columns(model)
        serving = columns.serving()
        draws = np.frombuffer(rng.randbytes(4 * size), dtype=np.uint32) % max(1, len(serving))
        at, ways = self._nearness.some(place, serving[draws])
        allowed, parallel = columns.slots[at] > 0, columns.parallel[at]
        self._exclude(excluded, allowed, at)
        return Candidates(
            at, self._loads.batches[at], self._loads.rows[at], columns.batches[at],
            columns.slots[at], parallel, self._loads.wait_ns(at, parallel, now_ns),
            columns.speed[at], ways, allowed, service_ns, payload_bytes,
        )  # fmt: skip

    def only(self, model: str) -> int | None:
        """Position of the one executor that serves it; None when there are several or none."""
        columns = self._models.get(model)
        if columns is None or len(serving := columns.serving()) != 1:
            return None
        return int(serving[0])

    def has_room(self, position: int, model: str) -> bool:
        columns = self._models[model]
        return bool(columns.batches[position] < columns.slots[position])

    def speed(self, position: int, model: str) -> float:
        """Its run time over the fleet's."""
        return float(self._models[model].speed[position])

    def reserve(
        self, position: int, model: str, rows: int, cost_ns: float = 0.0, now_ns: int = 0
    ) -> Reservation:
        """Hold one batch of `rows` at `position`, predicted to run `cost_ns`."""
        executor = self._executors[position]
        assert executor is not None, "a candidate that is allowed is present"  # noqa: S101
        cost_ns = cost_ns or UNKNOWN_COST_NS
        columns = self._models[model]
        self._loads.begin(position, rows, cost_ns, now_ns)
        columns.batches[position] += 1

        def release(ended_ns: int) -> None:
            if self._index.get(executor.id) == position:
                self._loads.end(position, rows, cost_ns, ended_ns)
                columns.batches[position] -= 1

        return Reservation(executor.id, release)

    # sums

    def serving(self, model: str) -> int:
        """How many executors serve it."""
        columns = self._models.get(model)
        return len(columns.serving()) if columns else 0

    def busy(self, model: str) -> list[str]:
        """Executors that serve it and could not start another batch at once."""
        columns = self._models.get(model)
        if columns is None:
            return []
        serving = columns.serving()
        full = self._loads.batches[serving] >= columns.parallel[serving]
        return [str(executor) for executor in self._ids[serving[full]]]

    def servers(self, model: str) -> list[str]:
        """Executors that serve it."""
        columns = self._models.get(model)
        return [str(e) for e in self._ids[columns.serving()]] if columns is not None else []

    def held(self, model: str, but: Collection[str] = ()) -> list[Held]:
        """What each executor that serves it holds of it."""
        columns = self._models.get(model)
        if columns is None:
            return []
        return [
            Held(self.executor_at(at), int(columns.batches[at]), math.ceil(columns.parallel[at]),
                 float(columns.speed[at]))
            for at in map(int, columns.serving())
            if self.executor_at(at) not in but
        ]  # fmt: skip

    def others(self, model: str, but: Collection[str]) -> bool:
        """Whether anybody besides `but` serves it."""
        columns = self._models.get(model)
        if columns is None:
            return False
        without = {self._index[e] for e in but if e in self._index}
        return any(position not in without for position in columns.serving())

    def capacity(self, model: str) -> tuple[int, int, int]:
        """Slots, parallel runs, and the smallest micro-batch limit of all executors."""
        columns = self._models.get(model)
        if columns is None or not len(serving := columns.serving()):
            return 0, 0, 0
        slots, parallel = int(columns.slots[serving].sum()), columns.parallel[serving].sum()
        return slots, math.ceil(parallel - _ROUNDING), columns.row_limit()

    def row_limit(self, model: str) -> int:
        """The last number of `capacity`, for every batch."""
        columns = self._models.get(model)
        return columns.row_limit() if columns is not None else 0

    def batches_in_flight(self, executor_id: str | None = None) -> int:
        if executor_id is None:
            return int(self._loads.batches.sum())
        return int(self._loads.batches[self._index[executor_id]])

    def rows_in_flight(self, executor_id: str) -> int:
        return int(self._loads.rows[self._index[executor_id]])

    # steps

    def _columns(self, model: str) -> ModelColumns:
        return self._models.get(model) or ModelColumns(len(self._executors))

    def _exclude(self, excluded: Collection[str], allowed: Flags, at: Ints | None) -> None:
        for executor_id in excluded:
            if (position := self._index.get(executor_id)) is None:
                continue
            if at is None:
                allowed[position] = False
            else:
                allowed &= at != position

    def _free_position(self) -> int:
        if not self._free:
            first, size = len(self._executors), max(8, 2 * len(self._executors))
            self._executors += [None] * (size - first)
            self._ids = np.concatenate((self._ids, np.full(size - first, "", dtype=np.object_)))
            self._positions = np.arange(size)
            self._free = list(range(size - 1, first - 1, -1))
            self._loads.grow(size)
            for columns in self._models.values():
                columns.grow(size)
        return self._free.pop()
