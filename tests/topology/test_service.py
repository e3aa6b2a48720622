"""The service over gRPC and Redis: first, newest, bounded, and gone when it should be."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from prometheus_client import CollectorRegistry

from sits_core.drain import Drain
from sits_core.identity import host_id
from sits_core.keepers import Periodic
from sits_core.registry import TOPOLOGY_TTL_S, RegistryUnavailable
from sits_core.rpc import Server
from sits_core.settings import load
from sits_core.testing import FakeClock, MemoryRegistry, wait_until
from sits_core.tracing import TraceContext, Tracer
from sits_protos.v1 import control_pb2, topology_pb2
from sits_protos.v1.control_pb2_grpc import ControlStub
from sits_protos.v1.topology_pb2_grpc import TopologyStub
from sits_topology.app import build_server, hello
from sits_topology.host import HostSource
from sits_topology.metrics import DeviceCollector, PublishMetrics
from sits_topology.model import Topology, TopologyError
from sits_topology.nvml import NvmlSource
from sits_topology.publisher import Publisher
from sits_topology.servicer import SnapshotServicer, TopologyControl
from sits_topology.settings import TopologySettings
from sits_topology.sources import AutoSource
from sits_topology.store import SnapshotStore
from sits_topology.testing import FakeCard, FakeNvml

GET, WATCH = topology_pb2.GetTopologyRequest(), topology_pb2.WatchTopologyRequest()
IN_TIME_S = 10.0


class FlakySource:
    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.failure: Exception | None = None

    def read(self) -> Topology:
        if self.failure is not None:
            raise self.failure
        return self.topology


class Service:
    """The parts of one service, published by hand."""

    def __init__(
        self, sysfs: Path, registry: MemoryRegistry | None, max_watchers: int = 256
    ) -> None:
        self.source = FlakySource(HostSource(sysfs).read())
        self.store = SnapshotStore()
        self.metrics = CollectorRegistry()
        self.tracer = Tracer("topology", 100, 0.0)
        self.publisher = Publisher(
            self.source, self.store, registry, self.tracer, PublishMetrics(self.metrics)
        )
        self.metrics.register(DeviceCollector(self.store))
        self.stop = Drain()
        self.servicer = SnapshotServicer(self.store, max_watchers)
        self.settings = load(TopologySettings, "topology", {}, topology_bind="127.0.0.1:0")
        control = TopologyControl(
            hello(self.settings), self.tracer, self.stop, self.store, self.publisher
        )
        self.server: Server = build_server(self.settings, self.servicer, control)

    def count(self, outcome: str) -> float:
        labels = {"outcome": outcome}
        return self.metrics.get_sample_value("sits_topology_publish_total", labels) or 0.0

    @contextmanager
    def channel(self) -> Iterator[grpc.Channel]:
        with grpc.insecure_channel(f"127.0.0.1:{self.server.port}") as channel:
            yield channel


@pytest.fixture
def registry() -> MemoryRegistry:
    return MemoryRegistry()


@pytest.fixture
def service(two_nodes, registry) -> Iterator[Service]:
    service = Service(two_nodes, registry)
    with service.server:
        yield service
        service.store.close()


# Get and Watch


def test_get_answers_the_newest_snapshot(service):
    service.publisher.publish()
    service.publisher.publish()
    with service.channel() as channel:
        snapshot = TopologyStub(channel).Get(GET, timeout=IN_TIME_S)
    assert (snapshot.version, snapshot.host) == (2, host_id())
    assert [device.id for device in snapshot.devices] == ["cpu:0", "cpu:1"]
    assert list(snapshot.sources) == ["sysfs"]
    weights = {(getattr(w, "from"), w.to): w.weight for w in snapshot.weights}
    assert weights["cpu:0", "cpu:0"] == weights["cpu:1", "cpu:1"] == 1.0
    assert 0.0 < weights["cpu:0", "cpu:1"] == weights["cpu:1", "cpu:0"] < 1.0


def test_get_before_the_first_read_is_unavailable(service):
    with service.channel() as channel, pytest.raises(grpc.RpcError) as refused:
        TopologyStub(channel).Get(GET, timeout=IN_TIME_S)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def test_watch_gives_the_current_snapshot_at_once_and_then_each_new_one(service):
    service.publisher.publish()
    with service.channel() as channel:
        watch = TopologyStub(channel).Watch(WATCH, timeout=IN_TIME_S)
        versions = [next(watch).version]
        for _ in range(3):
            service.publisher.publish()
            versions.append(next(watch).version)
        watch.cancel()
    assert versions == [1, 2, 3, 4]


def test_a_watch_opened_before_the_first_read_waits_for_it(service):
    with service.channel() as channel:
        watch = TopologyStub(channel).Watch(WATCH, timeout=IN_TIME_S)
        service.publisher.publish()
        assert next(watch).version == 1
        watch.cancel()


def test_a_slow_watcher_gets_the_newest_and_not_a_queue(service):
    """Far more than the transport can hold is published before the reader reads."""
    service.publisher.publish()
    snapshot = service.store.newest
    big = topology_pb2.TopologySnapshot(node_name="n" * 200_000)
    last = 400
    with service.channel() as channel:
        watch = TopologyStub(channel).Watch(WATCH, timeout=IN_TIME_S * 3)
        assert next(watch).version == snapshot.version
        for version in range(2, last + 1):
            big = topology_pb2.TopologySnapshot(node_name="n" * 200_000, version=version)
            service.store.put(big)
        seen = [next(watch).version]
        while seen[-1] < last:
            seen.append(next(watch).version)
        watch.cancel()
    assert seen == sorted(set(seen))
    assert len(seen) < last / 2


def test_a_handler_ends_when_its_client_goes(service):
    service.publisher.publish()
    with service.channel() as channel:
        watches = [TopologyStub(channel).Watch(WATCH) for _ in range(10)]
        for watch in watches:
            next(watch)
        assert service.servicer.watchers == 10
    wait_until(lambda: service.servicer.watchers == 0, what="end of the handlers")


def test_watches_end_with_a_status_when_the_service_stops(two_nodes):
    service = Service(two_nodes, None)
    service.publisher.publish()
    with service.server, service.channel() as channel:
        watches = [TopologyStub(channel).Watch(WATCH) for _ in range(50)]
        for watch in watches:
            next(watch)
        service.store.close()
        for watch in watches:
            with pytest.raises(grpc.RpcError) as ended:
                next(watch)
            assert ended.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_server_that_stops_first_ends_its_watches_too(two_nodes):
    service = Service(two_nodes, None)
    service.publisher.publish()
    service.server.start()
    with service.channel() as channel:
        watches = [TopologyStub(channel).Watch(WATCH) for _ in range(50)]
        for watch in watches:
            next(watch)
        service.server.stop(0.2)
        for watch in watches:
            with pytest.raises(grpc.RpcError):
                next(watch)
    wait_until(lambda: service.servicer.watchers == 0, what="end of the handlers")


def test_watchers_beyond_the_limit_are_refused_and_get_still_answers(two_nodes):
    service = Service(two_nodes, None, max_watchers=1)
    service.publisher.publish()
    with service.server, service.channel() as channel:
        first = TopologyStub(channel).Watch(WATCH, timeout=IN_TIME_S)
        next(first)
        with pytest.raises(grpc.RpcError) as refused:
            next(TopologyStub(channel).Watch(WATCH, timeout=IN_TIME_S))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert TopologyStub(channel).Get(GET, timeout=IN_TIME_S).version == 1
        first.cancel()


# Publishing


def test_what_gRPC_answers_is_what_redis_holds(service, registry):
    service.publisher.publish()
    assert registry.topologies() == [service.store.newest]


def test_what_is_published_expires(two_nodes):
    clock = FakeClock()
    registry = MemoryRegistry(clock)
    Service(two_nodes, registry).publisher.publish()
    clock.advance(TOPOLOGY_TTL_S - 1)
    assert len(registry.topologies()) == 1
    clock.advance(2)
    assert registry.topologies() == []


def test_while_redis_is_away_grpc_readers_are_served_and_the_age_grows(service, registry):
    service.publisher.publish()
    registry.down = True
    for version in (2, 3):
        with pytest.raises(RegistryUnavailable):
            service.publisher.publish()
        assert service.store.newest.version == version
    assert (service.count("ok"), service.count("redis_unavailable")) == (1, 2)
    assert not service.publisher.redis_connected
    first = service.metrics.get_sample_value("sits_topology_age_seconds")
    assert service.metrics.get_sample_value("sits_topology_age_seconds") > first
    registry.down = False
    service.publisher.publish()
    assert service.publisher.redis_connected
    assert registry.topologies()[0].version == 4


def test_a_keeper_goes_on_through_a_redis_outage(service, registry):
    keeper = Periodic(service.publisher.publish, 0.01, "topology")
    registry.down = True
    keeper.start()
    try:
        wait_until(lambda: service.count("redis_unavailable") >= 2)
        registry.down = False
        wait_until(lambda: service.count("ok") >= 2)
    finally:
        keeper.stop()


@pytest.mark.parametrize("failure", [TopologyError("gone"), UnicodeDecodeError("u", b"", 0, 1, "")])
def test_a_failed_read_publishes_nothing_and_the_last_snapshot_stays(service, registry, failure):
    service.publisher.publish()
    service.source.failure = failure
    with pytest.raises(type(failure)):
        service.publisher.publish()
    assert service.count("read_failed") == 1
    assert service.store.newest.version == registry.topologies()[0].version == 1
    service.source.failure = None
    service.publisher.publish()
    assert service.store.newest.version == 2


def test_each_publication_is_a_span_whose_context_the_snapshot_carries(service):
    service.publisher.publish()
    (span,) = service.tracer.spans()
    context = TraceContext.from_wire(service.store.newest.trace_context)
    assert span.name == "topology.publish"
    assert (span.trace_id, span.span_id) == (context.trace_id, context.span_id)
    assert span.attributes["devices"] == 2


def test_without_tracing_there_is_neither_span_nor_context(service):
    service.tracer.enabled = False
    service.publisher.publish()
    assert service.tracer.spans() == []
    assert service.store.newest.trace_context == b""


# Sources


def test_auto_is_linux_alone_until_a_driver_answers_and_then_insists(two_nodes):
    nvml = FlakySource(NvmlSource(two_nodes, FakeNvml([FakeCard("00000000:01:00.0")])).read())
    nvml.failure = TopologyError("no driver")
    source = AutoSource(nvml, HostSource(two_nodes))
    assert source.read().sources == ("sysfs",)
    nvml.failure = None
    assert source.read() is nvml.topology
    nvml.failure = TopologyError("driver restarts")
    with pytest.raises(TopologyError, match="restarts"):
        source.read()


# Control and metrics


def test_control_tells_readiness_age_and_redis(service, registry):
    with service.channel() as channel:
        control = ControlStub(channel)
        request = control_pb2.GetStateRequest()
        before = control.GetState(request, timeout=IN_TIME_S)
        assert (before.ready, before.topology_age_s) == (False, -1)
        service.publisher.publish()
        state = control.GetState(request, timeout=IN_TIME_S)
        assert state.ready
        assert state.topology_age_s >= 0
        assert state.redis_configured
        assert state.redis_connected
        spans = control.GetSpans(control_pb2.GetSpansRequest(), timeout=IN_TIME_S)
        assert [span.name for span in spans.spans] == ["topology.publish"]


def test_calls_of_other_roles_are_unimplemented(service):
    with service.channel() as channel, pytest.raises(grpc.RpcError) as refused:
        ControlStub(channel).SetStrategy(control_pb2.SetStrategyRequest(), timeout=IN_TIME_S)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_drain_stops_the_service(service):
    with service.channel() as channel:
        ControlStub(channel).Drain(control_pb2.DrainRequest(), timeout=IN_TIME_S)
    assert service.stop.is_set()


def test_metrics_follow_the_newest_snapshot(service):
    service.publisher.publish()
    sample = service.metrics.get_sample_value
    assert sample("sits_topology_devices", {"kind": "cpu"}) == 2
    assert sample("sits_topology_devices", {"kind": "gpu"}) == 0
    free = "sits_topology_device_memory_free_bytes"
    assert sample(free, {"device": "cpu:1"}) == 33 << 30
    assert sample("sits_topology_device_utilization_ratio", {"device": "cpu:1"}) is None
    assert sample("sits_topology_device_healthy", {"device": "cpu:1"}) == 1
    devices = service.source.topology.devices
    service.source.topology = Topology(devices[:1], (), ("sysfs",))
    service.publisher.publish()
    assert sample(free, {"device": "cpu:1"}) is None
