"""Builds the topology service from its settings and runs it."""

import time
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

from sits_core.clock import now_ns
from sits_core.drain import Drain
from sits_core.identity import host_id, new_process_id
from sits_core.keepers import LeaseKeeper, Periodic
from sits_core.metrics import ProcessRegistry, serve_metrics
from sits_core.redis_registry import connect
from sits_core.rpc import Server, require_token_off_loopback
from sits_core.settings import advertised
from sits_core.telemetry import open_tracer
from sits_core.tls import metrics_tls
from sits_protos.v1.control_pb2_grpc import add_ControlServicer_to_server
from sits_protos.v1.link_pb2 import ROLE_TOPOLOGY, Hello
from sits_protos.v1.registry_pb2 import Lease
from sits_protos.v1.topology_pb2_grpc import add_TopologyServicer_to_server
from sits_topology.measured import MeasuredSource
from sits_topology.metrics import DeviceCollector, PublishMetrics, measured_age
from sits_topology.publisher import Publisher
from sits_topology.servicer import SnapshotServicer, TopologyControl
from sits_topology.settings import TopologySettings
from sits_topology.sources import Source, choose_source
from sits_topology.store import SnapshotStore

FIRST_READ_POLL_S = 0.02


def serve(settings: TopologySettings, stop: Drain) -> None:
    """Run until `stop`; ready once the first topology is read."""
    require_token_off_loopback(settings.topology_bind, settings, "SITS_TOPOLOGY_BIND")
    registry, store = ProcessRegistry(), SnapshotStore()
    identity, started_ns = hello(settings), now_ns()
    with ExitStack() as stack:
        tracer = stack.enter_context(open_tracer("topology", settings, registry, identity.id))
        shared = connect(settings, registry)
        source = source_of(settings)
        if isinstance(source, MeasuredSource):
            measured_age(registry, lambda: source.age_s)
        publisher = Publisher(
            source,
            store,
            shared,
            tracer,
            PublishMetrics(registry),
        )
        registry.register(DeviceCollector(store))
        bind, tls = settings.topology_metrics_bind, metrics_tls(settings)
        stack.callback(serve_metrics(bind, registry, tls).shutdown)
        control = TopologyControl(identity, tracer, stop, store, publisher, registry)
        server = stack.enter_context(build_server(settings, SnapshotServicer(store), control))
        stack.callback(store.close)
        keeper = Periodic(publisher.publish, settings.topology_period_s, "topology")
        stack.callback(keeper.stop)
        keeper.start()
        lease = LeaseKeeper(shared, lambda: lease_of(identity, started_ns))
        stack.callback(lease.stop)
        lease.start()
        while store.newest is None and not stop.wait(FIRST_READ_POLL_S):
            pass
        server.set_ready(not stop.is_set())
        stop.wait()
        server.set_ready(False)


def source_of(settings: TopologySettings) -> Source:
    """What the settings name, with measured links where they name a file of `sits probe`."""
    source = choose_source(settings.topology_source)
    if not settings.topology_measured:
        return source
    path, max_age_s = Path(settings.topology_measured), settings.topology_measured_max_age_s
    return MeasuredSource(source, path, max_age_s, time.time)


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
        control_address=advertised(settings.topology_bind, settings),
    )


def lease_of(own: Hello, started_ns: int) -> Lease:
    """How others find this service, to ask for its state and spans."""
    return Lease(
        role=own.role,
        id=own.id,
        address=own.control_address,
        control_address=own.control_address,
        host=own.host,
        started_unix_ns=started_ns,
    )
