"""Whose turn it is on a device that several models share (E6).

Urgent batches go first. Among equally urgent ones the model goes whose used time is the smallest
for its share; the shares are decided every 100 ms by `sits_scheduling.time_slices` from what
arrived × what a run takes. A model that has nothing to run leaves its time to the others.
Weakness: a stream's time counts whole although streams share the device, so that a model whose
runs fill the device alone is charged no more than one whose runs leave room.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from sits_executor.queue import BatchQueue, Rank
from sits_scheduling.time_slices import PERIOD_NS, TimeSlices

_FADE: Final = 0.5
"""What is left of used time after a period: who was idle catches up for some periods only."""


class Sharing(Protocol):
    """What this file reads of a model. `run_s` is what one run takes."""

    name: str
    queue: BatchQueue
    run_s: float

    def head(self) -> Rank | None: ...
    @property
    def may_start(self) -> bool: ...


class Shares:
    """`streams` is what counts as the whole device. Times are in nanoseconds."""

    def __init__(self, streams: int, now_ns: int) -> None:
        self._streams = streams
        self._models: tuple[Sharing, ...] = ()
        self._slices = TimeSlices(1)
        self._used: dict[Sharing, float] = {}
        self._arrived: dict[Sharing, int] = {}
        self._next_ns = now_ns + PERIOD_NS
        self.reallocations = 0

    def set_models(self, models: Sequence[Sharing]) -> None:
        """Begins with equal shares whenever a model comes or goes."""
        self._models = tuple(models)
        self._slices = TimeSlices(max(1, len(models)))
        self._used = {model: self._used.get(model, 0.0) for model in models}
        self._arrived = {model: model.queue.arrivals for model in models}

    def pick(self) -> Sharing | None:
        """The model whose next batch starts now; None when none may."""
        best: Sharing | None = None
        best_key: tuple[int, float, Rank] | None = None
        for index, model in enumerate(self._models):
            head = model.head()
            if head is None or not model.may_start:
                continue
            key = (head.priority, self._used[model] / float(self._slices.shares[index]), head)
            if best_key is None or key < best_key:
                best, best_key = model, key
        return best

    def used(self, model: Sharing, seconds: float) -> None:
        if model in self._used:
            self._used[model] += seconds

    def look(self, now_ns: int) -> bool:
        """Once a period: fade what was used, and decide the shares anew. Whether they changed."""
        if now_ns < self._next_ns:
            return False
        periods = max(1.0, (now_ns - self._next_ns + PERIOD_NS) / PERIOD_NS)
        self._next_ns = now_ns + PERIOD_NS
        loads = [self._load(model, periods) for model in self._models]
        for model in self._models:
            self._used[model] *= _FADE
            self._arrived[model] = model.queue.arrivals
        if len(self._models) < 2 or not self._slices.look(loads):
            return False
        self.reallocations += 1
        return True

    def by_model(self) -> dict[str, float]:
        return {
            model.name: float(share)
            for model, share in zip(self._models, self._slices.shares, strict=False)
        }

    def _load(self, model: Sharing, periods: float) -> float:
        """Part of the device that what arrived in the period needs."""
        arrived = model.queue.arrivals - self._arrived[model]
        return arrived * model.run_s / (periods * PERIOD_NS / 1e9 * self._streams)
