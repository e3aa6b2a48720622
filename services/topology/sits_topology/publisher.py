"""One publication: read the topology, give it to gRPC readers and to Redis."""

from sits_core.clock import now_ns
from sits_core.identity import host_id
from sits_core.registry import Registry, RegistryUnavailable
from sits_core.settings import node_name
from sits_core.tracing import TraceContext, Tracer
from sits_protos.v1.topology_pb2 import TopologySnapshot
from sits_topology.metrics import PublishMetrics
from sits_topology.snapshot import to_proto
from sits_topology.sources import Source
from sits_topology.store import SnapshotStore


class Publisher:
    """A keeper (`sits_core.keepers.Periodic`) calls `publish` every period.

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
    ) -> None:
        self._source, self._store, self._registry = source, store, registry
        self._tracer, self._metrics = tracer, metrics
        self._version = 0
        self._arrived_ns = now_ns()
        self.redis_configured = registry is not None
        self.redis_connected = False
        metrics.age.set_function(lambda: (now_ns() - self._arrived_ns) / 1e9)

    def publish(self) -> None:
        """Raises what went wrong, once it is counted: reading, or `RegistryUnavailable`."""
        started_ns = now_ns()
        trace = self._tracer.incoming(None, ratio=1.0)
        own = trace and TraceContext(trace.trace_id, self._tracer.new_span_id())
        snapshot = self._next_snapshot(own)
        self._store.put(snapshot)
        failure = self._send(snapshot)
        self._metrics.total.labels("redis_unavailable" if failure else "ok").inc()
        if trace and own:
            self._record(snapshot, trace, own.span_id, started_ns, failure)
        if failure:
            raise failure

    def _next_snapshot(self, span: TraceContext | None) -> TopologySnapshot:
        try:
            topology = self._source.read()
        except Exception:
            self._metrics.total.labels("read_failed").inc()
            raise
        self._version += 1
        snapshot = to_proto(topology, host=host_id(), node_name=node_name())
        snapshot.version = self._version
        snapshot.published_unix_ns = now_ns()
        snapshot.trace_context = b"" if span is None else span.to_wire()
        return snapshot

    def _send(self, snapshot: TopologySnapshot) -> RegistryUnavailable | None:
        self.redis_connected = False
        if self._registry is not None:
            try:
                self._registry.publish_topology(snapshot)
            except RegistryUnavailable as failure:
                return failure
            self.redis_connected = True
        self._arrived_ns = now_ns()
        return None

    def _record(
        self,
        snapshot: TopologySnapshot,
        trace: TraceContext,
        span_id: bytes,
        started_ns: int,
        failure: RegistryUnavailable | None,
    ) -> None:
        self._tracer.record(
            "topology.publish",
            trace,
            started_ns,
            now_ns(),
            {"devices": len(snapshot.devices), "bytes": snapshot.ByteSize()},
            span_id=span_id,
            error="redis unavailable" if failure else "",
        )

    def __repr__(self) -> str:
        return f"<Publisher version={self._version} redis_connected={self.redis_connected}>"
