"""Reads the topology every period and gives it to Redis and to gRPC watchers."""

import threading

import structlog

from sits_core.clock import now_ns
from sits_core.identity import host_id
from sits_core.registry import Registry, RegistryUnavailable
from sits_core.settings import node_name
from sits_core.tracing import TraceContext, Tracer
from sits_protos.v1.topology_pb2 import TopologySnapshot
from sits_topology.metrics import PublishMetrics
from sits_topology.model import TopologyError
from sits_topology.snapshot import to_proto
from sits_topology.sources import Source
from sits_topology.store import SnapshotStore

log = structlog.get_logger()

LOG_PERIOD_NS = 60_000_000_000
"""An outage is one line a minute, not one a period."""

STOP_S = 5.0
"""A driver that hangs must not keep the process from leaving."""


class Publisher:
    """Runs on a thread of its own between `start` and `stop`.

    A failed read publishes nothing: readers keep the last snapshot and see it grow old.
    Without Redis, or while it is away, gRPC readers are served all the same.
    """

    def __init__(
        self,
        source: Source,
        store: SnapshotStore,
        registry: Registry | None,
        tracer: Tracer,
        metrics: PublishMetrics,
        period_s: float,
    ) -> None:
        self._source, self._store, self._registry = source, store, registry
        self._tracer, self._metrics, self._period_s = tracer, metrics, period_s
        self._version = 0
        self._arrived_ns = now_ns()
        self._logged_ns = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="topology-publish", daemon=True)
        self.redis_configured = registry is not None
        self.redis_connected = False
        metrics.age.set_function(lambda: (now_ns() - self._arrived_ns) / 1e9)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(STOP_S)

    def publish_once(self) -> str:
        """One period's work; what fails is counted and logged, not raised. The outcome."""
        outcome = self._publish(now_ns())
        self._metrics.total.labels(outcome).inc()
        return outcome

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.publish_once()
            self._stopped.wait(self._period_s)

    def _publish(self, started_ns: int) -> str:
        trace = self._tracer.incoming(None, ratio=1.0)
        own = trace and TraceContext(trace.trace_id, self._tracer.new_span_id())
        try:
            snapshot = self._next_snapshot(own)
        except Exception as error:  # noqa: BLE001 - one bad answer must not end all freshness
            self._complain("topology.read_failed", error)
            return "read_failed"
        self._store.put(snapshot)
        outcome = self._send(snapshot)
        if trace and own:
            self._record(snapshot, trace, own.span_id, started_ns, outcome)
        return outcome

    def _record(
        self,
        snapshot: TopologySnapshot,
        trace: TraceContext,
        span_id: bytes,
        started_ns: int,
        outcome: str,
    ) -> None:
        self._tracer.record(
            "topology.publish",
            trace,
            started_ns,
            now_ns(),
            {"devices": len(snapshot.devices), "bytes": snapshot.ByteSize()},
            span_id=span_id,
            error="" if outcome == "ok" else outcome,
        )

    def _next_snapshot(self, span: TraceContext | None) -> TopologySnapshot:
        snapshot = to_proto(self._source.read(), host=host_id(), node_name=node_name())
        self._version += 1
        snapshot.version = self._version
        snapshot.published_unix_ns = now_ns()
        snapshot.trace_context = b"" if span is None else span.to_wire()
        return snapshot

    def _send(self, snapshot: TopologySnapshot) -> str:
        try:
            if self._registry is not None:
                self._registry.publish_topology(snapshot)
                self.redis_connected = True
        except RegistryUnavailable as error:
            self.redis_connected = False
            self._complain("topology.redis_unavailable", error)
            return "redis_unavailable"
        self._arrived_ns = now_ns()
        return "ok"

    def _complain(self, event: str, error: Exception) -> None:
        """The first failure after a while is logged; the counter has them all."""
        if now_ns() - self._logged_ns < LOG_PERIOD_NS:
            return
        self._logged_ns = now_ns()
        expected = isinstance(error, RegistryUnavailable | TopologyError)
        log.warning(event, error=str(error), exc_info=None if expected else error)

    def __repr__(self) -> str:
        return f"<Publisher version={self._version} redis_connected={self.redis_connected}>"
