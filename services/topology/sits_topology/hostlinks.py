"""Links that follow from where devices sit: between CPU nodes, and from devices to them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from sits_scheduling.links import Knowledge, LinkKind
from sits_topology.bandwidth import SOCKET_GBPS
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
    device: Device, cpus: Sequence[Device], distances: Distances, *, on_c2c: bool = False
) -> Iterator[Link]:
    """To each CPU node: behind its host bridge (or on its C2C), or across the sockets."""
    near = LinkKind.C2C if on_c2c else LinkKind.PHB
    for cpu in cpus:
        if device.numa_node is None:
            kind, knowledge = LinkKind.UNSPECIFIED, Knowledge.UNKNOWN
        else:
            kind = near if device.numa_node == cpu.numa_node else LinkKind.SYS
            knowledge = Knowledge.KNOWN
        link = pcie_link(device, cpu, kind, knowledge, distances)
        yield replace(link, bandwidth_gbps=None) if kind is LinkKind.C2C else link


def pcie_link(
    one: Device, other: Device, kind: LinkKind, knowledge: Knowledge, distances: Distances
) -> Link:
    """As fast as the slower of the two PCIe links, where they are known."""
    speeds = [device.pcie_gbps for device in (one, other) if device.pcie_gbps]
    return Link(
        one.id,
        other.id,
        kind,
        knowledge,
        bandwidth_gbps=min(speeds, default=None),
        numa_distance=_distance(one, other, distances),
    )


def _distance(one: Device, other: Device, distances: Distances) -> int | None:
    """Of their nodes; None where one is unknown, or where both sit in one node."""
    if one.numa_node is None or other.numa_node is None or one.numa_node == other.numa_node:
        return None
    return distances.get((one.numa_node, other.numa_node))
