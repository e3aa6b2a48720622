"""Collects what moves in the mesh, when somebody looks, and once a second at most."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry

from sits_core.clock import now_ns
from sits_core.control import samples
from sits_dispatcher import admin_models as api
from sits_dispatcher.dashboard import mesh_view
from sits_dispatcher.dashboard.peers import TIMEOUT_S, Peers
from sits_dispatcher.dashboard.tenants import tenants
from sits_dispatcher.dashboard.tracks import (
    LABELS,
    Counters,
    Tracks,
    buckets,
    quantile,
    summed,
)
from sits_dispatcher.mesh import Mesh
from sits_protos.v1.control_pb2 import GetMetricsRequest, MetricSample

PERIOD_S: Final = 1.0
SHORT_S, LONG_S = 5.0, 60.0
"""What rates are over, and what tenants are judged by."""
QUEUED: Final = "sits_preprocess_queued"
PENDING: Final = "sits_dispatcher_pending"
OWN: Final = ""
"""Id of this process among the tracks."""
ANSWERED, MOVED = "answered", "moved"
"""Batches by executor, and bytes by place and executor: counters that no metric has unbounded."""
REQUEST: Final = GetMetricsRequest(
    names=[QUEUED, *(name for name in LABELS if not name.startswith("sits_dispatcher_"))]
)


class Live:
    """The newest collection. While one is under way, others get the one before."""

    def __init__(
        self, mesh: Mesh, peers: Peers, registry: CollectorRegistry,
        state: Callable[[], api.State], slo_ms: Mapping[str, float],
    ) -> None:  # fmt: skip
        self._mesh, self._peers, self._registry = mesh, peers, registry
        self._state, self._slo_ms = state, slo_ms
        self._tracks = Tracks()
        self._lock = threading.Lock()
        self._json, self._due_s = b"", 0.0

    def json(self) -> bytes:
        """An `api.Live`, not older than `PERIOD_S` unless the mesh is slow to answer."""
        if self._lock.acquire(blocking=not self._json):
            try:
                if time.monotonic() >= self._due_s:
                    self._json = self._collect().model_dump_json(by_alias=True).encode()
                    self._due_s = time.monotonic() + PERIOD_S
            finally:
                self._lock.release()
        return self._json

    def _collect(self) -> api.Live:
        state = self._state()
        told = self._ask({front.address: front.id for front in state.fronts})
        own = [(s.name, s.labels, s.value) for s in samples(self._registry, {*LABELS, PENDING})]
        self._tracks.keep({OWN, *(front.id for front in state.fronts)})
        answered = {(ANSWERED, e.id): float(e.batches_total) for e in state.executors}
        self._tracks.add(OWN, now_ns(), summed(own) | answered | moved(self._mesh))
        pending = sum(value for name, _, value in own if name == PENDING)
        window_s, rates = self._tracks.rates(SHORT_S)
        return api.Live(
            taken_unix_ms=now_ns() // 1_000_000,
            window_s=window_s,
            topology_revision=mesh_view.revision(self._mesh.snapshots()),
            state=state,
            traffic=traffic(rates),
            queues=queues(state, told, int(pending)),
            batching=batching(rates, self._tracks.totals()),
            tenants=tenants(self._tracks.rates(LONG_S)[1], self._slo_ms),
            models=models(rates),
            answered_per_s=_by(rates, ANSWERED, label=1),
            moved=[_moved(key, value) for key, value in rates.items() if key[0] == MOVED],
            silent_fronts=[front.address for front in state.fronts if front.id not in told],
        )

    def _ask(self, fronts: Mapping[str, str]) -> dict[str, int]:
        """Follow the counters of the front doors; how many requests wait in each that answers."""
        answers = self._peers.ask(
            fronts,
            lambda stub: stub.GetMetrics.future(
                REQUEST, timeout=TIMEOUT_S, metadata=self._peers.metadata
            ),
        )
        waiting = {}
        for address, answer in answers.items():
            self._tracks.add(fronts[address], now_ns(), summed(_told(answer.samples)))
            queued = (sample.value for sample in answer.samples if sample.name == QUEUED)
            waiting[fronts[address]] = int(sum(queued))
        return waiting


def _told(found: Iterable[MetricSample]) -> Iterator[tuple[str, Mapping[str, str], float]]:
    return ((sample.name, sample.labels, sample.value) for sample in found)


def traffic(rates: Counters) -> api.Traffic:
    seconds = buckets(rates, "sits_request_seconds_bucket")
    outcomes = _by(rates, "sits_requests_total", label=2)
    return api.Traffic(
        requests_per_s=_sum(outcomes),
        outcomes_per_s=outcomes,
        p50_ms=_ms(quantile(seconds, 0.5)),
        p99_ms=_ms(quantile(seconds, 0.99)),
        rows_per_s=_sum(_by(rates, "sits_dispatcher_rows_total", label=1)),
        batches_per_s=_sum(_by(rates, "sits_dispatcher_batches_total", label=1)),
    )


def queues(state: api.State, told: Mapping[str, int], pending: int) -> api.Queues:
    return api.Queues(
        front_requests=sum(told.values()) if told else None,
        pending_batches=pending,
        in_flight_batches=sum(executor.batches_in_flight for executor in state.executors),
        in_flight_rows=sum(executor.rows_in_flight for executor in state.executors),
    )


def batching(rates: Counters, totals: Counters) -> api.Batching:
    per_s = _by(rates, "sits_batch_closed_total", label=1)
    closed = _by(totals, "sits_batch_closed_total", label=1)
    batches = rates.get(("sits_batch_rows_count",), 0.0)
    rows = rates.get(("sits_batch_rows_sum",), 0.0)
    return api.Batching(
        reasons=[
            api.CloseReason(reason=reason, total=int(closed[reason]), per_s=per_s.get(reason, 0.0))
            for reason in sorted(closed)
        ],
        rows_per_batch=rows / batches if batches else None,
    )


def models(rates: Counters) -> list[api.ModelRate]:
    batches = _by(rates, "sits_dispatcher_batches_total", label=1)
    rows = _by(rates, "sits_dispatcher_rows_total", label=1)
    return [
        api.ModelRate(model=name, batches_per_s=batches[name], rows_per_s=rows.get(name, 0.0))
        for name in sorted(batches)
    ]


def moved(mesh: Mesh) -> dict[tuple[str, ...], float]:
    """Bytes so far, as counters."""
    with mesh.dispatcher.lock:
        totals = mesh.dispatcher.traffic.totals()
    found: dict[tuple[str, ...], float] = defaultdict(float)
    for (place, executor), size in totals.items():
        found[MOVED, place.host, str(place.numa_node), executor] += size
    return found


def _moved(key: tuple[str, ...], bytes_per_s: float) -> api.Moved:
    _, host, node, executor = key
    numa_node = int(node) if int(node) >= 0 else None
    return api.Moved(host=host, numa_node=numa_node, executor=executor, bytes_per_s=bytes_per_s)


def _by(counters: Counters, name: str, label: int) -> dict[str, float]:
    """One metric, summed up by the label at this position of its key."""
    found: dict[str, float] = {}
    for key, value in counters.items():
        if key[0] == name:
            found[key[label]] = found.get(key[label], 0.0) + value
    return found


def _sum(rates: Mapping[str, float]) -> float | None:
    return sum(rates.values()) if rates else None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3
