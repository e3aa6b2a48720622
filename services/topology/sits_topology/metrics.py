"""Prometheus metrics of the topology service. Those of devices follow the newest snapshot."""

from collections import Counter as Tally
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from sits_core.metrics import BoundedLabel
from sits_protos.v1 import topology_pb2 as pb
from sits_topology.model import MAX_DEVICES
from sits_topology.store import SnapshotStore


class PublishMetrics:
    """Counts publications; the age is that of the last one that arrived everywhere."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.total = Counter(
            "sits_topology_publish",
            "Publications by outcome: ok, redis_unavailable, read_failed",
            ["outcome"],
            registry=registry,
        )
        self.age = Gauge(
            "sits_topology_age_seconds",
            "Since the last snapshot that reached Redis (gRPC alone, without Redis)",
            registry=registry,
        )


def measured_age(registry: CollectorRegistry, age_s: Callable[[], float]) -> None:
    """Of the file of `sits probe` in use; +Inf while links are nominal for want of one."""
    Gauge(
        "sits_topology_measured_age_seconds",
        "Since the links were measured whose figures are published; +Inf = there is no such file",
        registry=registry,
    ).set_function(age_s)


class DeviceCollector(Collector):
    """Reads the newest snapshot when scraped, so a device that left leaves no series behind."""

    def __init__(self, store: SnapshotStore) -> None:
        self._store = store
        self._label = BoundedLabel(MAX_DEVICES)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        snapshot = self._store.newest or pb.TopologySnapshot()
        yield _kinds(snapshot)
        yield self._per_device(
            "sits_topology_device_utilization_ratio",
            "Busy share of a device, 0 to 1; absent where unknown",
            {d.id: d.utilization for d in snapshot.devices if d.HasField("utilization")},
        )
        yield self._per_device(
            "sits_topology_device_memory_free_bytes",
            "Free memory of a device; absent where unknown",
            {
                d.id: d.memory_free_bytes
                for d in snapshot.devices
                if d.HasField("memory_free_bytes")
            },
        )
        yield self._per_device(
            "sits_topology_device_healthy",
            "1 = good, 0 = degraded or bad",
            {d.id: d.health == pb.DEVICE_HEALTH_GOOD for d in snapshot.devices},
        )

    def _per_device(self, name: str, text: str, values: dict[str, float]) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, text, labels=["device"])
        bounded = {self._label(device): value for device, value in values.items()}
        for device, value in bounded.items():
            family.add_metric([device], value)
        return family


def _kinds(snapshot: pb.TopologySnapshot) -> GaugeMetricFamily:
    family = GaugeMetricFamily("sits_topology_devices", "Devices seen, by kind", labels=["kind"])
    tally = Tally(device.kind for device in snapshot.devices)
    for kind in (pb.DEVICE_KIND_CPU, pb.DEVICE_KIND_GPU, pb.DEVICE_KIND_MIG, pb.DEVICE_KIND_NIC):
        name = pb.DeviceKind.Name(kind).removeprefix("DEVICE_KIND_").lower()
        family.add_metric([name], tally[kind])
    return family
