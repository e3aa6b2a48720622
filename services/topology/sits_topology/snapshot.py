"""A topology as the message that the mesh reads, with the weights that follow from it."""

from collections.abc import Iterator

from sits_protos.v1 import topology_pb2 as pb
from sits_scheduling.links import DEGRADED_FACTOR, Knowledge, cost_s_per_mb
from sits_topology.affinity import weight
from sits_topology.model import Device, DeviceKind, Health, Link, Topology


def to_proto(topology: Topology, *, host: str, node_name: str) -> pb.TopologySnapshot:
    """Version, time and trace context are the publisher's to set.

    Every ordered pair of devices that may carry work has a weight, a device with itself included
    (1.0). Links between two
    MIG slices are left out, being all alike: 56 slices would have 3,080 of them.
    """
    slices = {device.id for device in topology.of_kind(DeviceKind.MIG)}
    return pb.TopologySnapshot(
        host=host,
        node_name=node_name,
        devices=map(_device, topology.devices),
        links=[_link(li) for li in topology.links if not {li.source, li.target} <= slices],
        weights=_weights(topology),
        sources=topology.sources,
    )


def _device(device: Device) -> pb.Device:
    return pb.Device(
        id=device.id,
        kind=pb.DeviceKind.ValueType(device.kind.value),
        name=device.name,
        pci_bus_id=device.pci_bus_id,
        numa_node=-1 if device.numa_node is None else device.numa_node,
        index=-1 if device.index is None else device.index,
        memory_total_bytes=device.memory_total_bytes,
        memory_free_bytes=device.memory_free_bytes,
        utilization=device.utilization,
        health=pb.DeviceHealth.ValueType(device.health.value),
        health_reason=device.health_reason,
        missing=device.missing,
        cpus=device.cpus,
    )


def _link(link: Link) -> pb.DeviceLink:
    message = pb.DeviceLink(
        to=link.target,
        kind=pb.LinkKind.ValueType(link.kind.value),
        knowledge=pb.LinkKnowledge.ValueType(link.knowledge.value),
        lanes=link.lanes or 0,
        bandwidth_gbps=link.bandwidth_gbps or 0.0,
        latency_us=link.latency_us or 0.0,
        measured=link.measured,
    )
    setattr(message, "from", link.source)  # a keyword of Python
    return message


def _weights(topology: Topology) -> Iterator[pb.AffinityWeight]:
    """None to or from a device that is BAD; what leads to a DEGRADED one costs more."""
    health = {device.id: device.health for device in topology.devices}
    for device in topology.devices:
        if device.health is not Health.BAD:
            yield _weight(device.id, device.id, 0.0)
    for link in topology.links:
        ends = (health[link.source], health[link.target])
        if Health.BAD not in ends:
            yield _weight(link.source, link.target, _cost_s(link, ends))


def _cost_s(link: Link, ends: tuple[Health, Health]) -> float:
    """A degraded link says the same of its ends: it counts once."""
    cost_s = link_cost_s(link)
    if Health.DEGRADED in ends and link.knowledge is not Knowledge.DEGRADED:
        return cost_s * DEGRADED_FACTOR
    return cost_s


def link_cost_s(link: Link) -> float:
    """Seconds to move a megabyte over `link`."""
    return cost_s_per_mb(
        link.kind,
        link.knowledge,
        link.bandwidth_gbps,
        numa_distance=link.numa_distance,
        measured=link.measured,
    )


def _weight(source: str, target: str, cost_s: float) -> pb.AffinityWeight:
    message = pb.AffinityWeight(to=target, weight=weight(cost_s), cost_s_per_mb=cost_s)
    setattr(message, "from", source)
    return message
