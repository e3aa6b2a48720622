"""What all executors together can run, as it is told to the fronts."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from sits_protos.oip.model_config_pb2 import ModelConfig
from sits_protos.v1.link_pb2 import Catalog, Credit, Credits, ModelEntry, ModelState
from sits_scheduling.governance import Plan
from sits_scheduling.micro_batches import shrunk_rows

_GONE = "no executor that serves it is connected"
_RANK = {
    ModelState.MODEL_STATE_READY: 4,
    ModelState.MODEL_STATE_LOADING: 3,
    ModelState.MODEL_STATE_UNLOADING: 2,
    ModelState.MODEL_STATE_UNAVAILABLE: 1,
    ModelState.MODEL_STATE_UNSPECIFIED: 0,
}

Key = tuple[str, str]
Capacity = Callable[[str], tuple[int, int, int]]
"""Of a model: slots, parallel runs, and the row limit."""
RowNs = Callable[[str, int], float]
"""What a row of a model, a key of the table, costs in a batch of so many rows."""


class MergedCatalog:
    """The best state of each model over all executors.

    A model whose last executor left stays known as unavailable: its clients hear "not
    now", not "no such model". It goes when a connected executor stops announcing it.
    """

    def __init__(self) -> None:
        self._by_executor: dict[str, dict[Key, ModelEntry]] = {}
        self._orphans: dict[Key, ModelEntry] = {}
        self._revision = 0

    def announce(self, executor_id: str, entries: Iterable[ModelEntry]) -> None:
        own = {(e.name, e.version): e for e in entries}
        self._by_executor[executor_id] = own
        for key in own:
            self._orphans.pop(key, None)
        self._revision += 1

    def leave(self, executor_id: str) -> None:
        own = self._by_executor.pop(executor_id, {})
        served = {key for entries in self._by_executor.values() for key in entries}
        for key in own.keys() - served:
            orphan = ModelEntry()
            orphan.CopyFrom(own[key])
            orphan.state, orphan.reason = ModelState.MODEL_STATE_UNAVAILABLE, _GONE
            self._orphans[key] = orphan
        self._revision += 1

    def merged(self) -> Catalog:
        best: dict[Key, ModelEntry] = dict(self._orphans)
        for entries in self._by_executor.values():
            for key, entry in entries.items():
                if key not in best or _RANK[entry.state] > _RANK[best[key].state]:
                    best[key] = entry
        return Catalog(models=[best[key] for key in sorted(best)], revision=self._revision)

    def of(self, executor_id: str) -> Mapping[Key, ModelEntry]:
        return self._by_executor.get(executor_id, {})


def credits_for(
    catalog: Catalog, capacity: Capacity, fronts: int, sharing: bool, plan: Plan,
    row_ns: RowNs,
) -> Credits:  # fmt: skip
    """Each front's equal part of every model's capacity, at least one batch, and what
    governance asks of it."""
    shed = [tier.name.lower() for tier in plan.shed]
    result = Credits(shed_tiers=shed, degrade=plan.degrade)
    for entry in catalog.models:
        slots, parallel, rows = capacity(f"{entry.name}/{entry.version}")
        result.models.append(
            Credit(
                model=entry.name,
                version=entry.version,
                micro_batch_rows=_limited(rows, entry, plan.micro_batch_factor, row_ns),
                window=_part(slots, fronts),
                instances=_part(parallel, fronts),
                shared_memory=sharing,
            )
        )
    return result


def _limited(rows: int, entry: ModelEntry, factor: float, row_ns: RowNs) -> int:
    """`rows` 0 = the model's own limit; a model that does not batch stays as it is."""
    if factor >= 1.0:
        return rows
    usual = rows or ModelConfig.FromString(entry.config).max_batch_size
    if not usual:
        return 0
    return shrunk_rows(usual, factor, partial(row_ns, f"{entry.name}/{entry.version}"))


def _part(total: int, fronts: int) -> int:
    return -(-total // max(1, fronts))
