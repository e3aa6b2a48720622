"""`python -m sits_topology`: builds the service from its settings and runs it."""

import threading
from importlib.metadata import version

from prometheus_client import CollectorRegistry

from sits_core.identity import host_id, new_process_id
from sits_core.metrics import serve_metrics
from sits_core.process import run
from sits_core.redis_registry import connect
from sits_core.rpc import Server, require_token_off_loopback
from sits_core.tracing import Tracer
from sits_protos.v1.control_pb2_grpc import add_ControlServicer_to_server
from sits_protos.v1.link_pb2 import ROLE_TOPOLOGY, Hello
from sits_protos.v1.topology_pb2_grpc import add_TopologyServicer_to_server
from sits_topology.metrics import DeviceCollector, PublishMetrics
from sits_topology.publisher import Publisher
from sits_topology.servicer import SnapshotServicer, TopologyControl
from sits_topology.settings import TopologySettings
from sits_topology.sources import choose_source
from sits_topology.store import SnapshotStore

FIRST_READ_POLL_S = 0.05


def serve(settings: TopologySettings, stop: threading.Event) -> None:
    require_token_off_loopback(settings.topology_bind, settings, "SITS_TOPOLOGY_BIND")
    tracer = Tracer("topology", settings.trace_ring, settings.trace_ratio)
    metrics = CollectorRegistry()
    store = SnapshotStore()
    publisher = Publisher(
        choose_source(settings.topology_source),
        store,
        connect(settings, metrics),
        tracer,
        PublishMetrics(metrics),
        settings.topology_period_s,
    )
    metrics.register(DeviceCollector(store))
    control = TopologyControl(hello(settings), tracer, stop, store, publisher)
    exposition = serve_metrics(settings.topology_metrics_bind, metrics)
    with build_server(settings, SnapshotServicer(store), control) as server:
        publisher.start()
        while store.newest is None and not stop.wait(FIRST_READ_POLL_S):
            pass
        server.set_ready(not stop.is_set())
        stop.wait()
        server.set_ready(False)
        store.close()
        publisher.stop()
    exposition.shutdown()


def build_server(
    settings: TopologySettings, servicer: SnapshotServicer, control: TopologyControl
) -> Server:
    tokens = [token for name in ("mesh_token", "admin_token") if (token := settings.secret(name))]
    server = Server(settings.topology_bind, settings, tokens=tokens)
    server.add(add_TopologyServicer_to_server, servicer, "sits.v1.Topology")
    server.add(add_ControlServicer_to_server, control, "sits.v1.Control")
    return server


def hello(settings: TopologySettings) -> Hello:
    return Hello(
        role=ROLE_TOPOLOGY,
        id=new_process_id("topology"),
        host=host_id(),
        numa_node=-1,
        software_version=version("sits-topology"),
        control_address=settings.topology_bind,
    )


if __name__ == "__main__":
    run("topology", TopologySettings, serve)
