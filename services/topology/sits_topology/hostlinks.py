"""Links that follow from where devices sit: between CPU nodes, and from devices to them."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from sits_topology.affinity import SOCKET_GBPS, Knowledge, LinkKind
from sits_topology.model import Device, Link

Distances = Mapping[tuple[int, int], int]


def cpu_links(cpus: Sequence[Device], distances: Distances) -> Iterator[Link]:
    """Each pair of CPU nodes once."""
    for one, other in combinations(cpus, 2):
        yield Link(
            one.id,
            other.id,
            LinkKind.SYS,
            Knowledge.KNOWN,
            bandwidth_gbps=SOCKET_GBPS,
            numa_distance=_distance(one, other, distances),
        )


def device_links(
    devices: Sequence[Device], cpus: Sequence[Device], distances: Distances
) -> Iterator[Link]:
    """Each device with each CPU node: behind its host bridge, or across the sockets."""
    for device in devices:
        for cpu in cpus:
            yield _to_cpu(device, cpu, distances)


def _to_cpu(device: Device, cpu: Device, distances: Distances) -> Link:
    if device.numa_node is None:
        kind, knowledge = LinkKind.UNSPECIFIED, Knowledge.UNKNOWN
    elif device.numa_node == cpu.numa_node:
        kind, knowledge = LinkKind.PHB, Knowledge.KNOWN
    else:
        kind, knowledge = LinkKind.SYS, Knowledge.KNOWN
    return Link(
        device.id,
        cpu.id,
        kind,
        knowledge,
        bandwidth_gbps=device.pcie_gbps,
        numa_distance=_distance(device, cpu, distances),
    )


def _distance(one: Device, other: Device, distances: Distances) -> int | None:
    if one.numa_node is None or other.numa_node is None:
        return None
    return distances.get((one.numa_node, other.numa_node))
