"""What every Linux machine has: CPU nodes and NICs, and how they are connected."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sits_scheduling.links import Knowledge, LinkKind
from sits_topology.hostlinks import Distances, cpu_links, device_links, pcie_link
from sits_topology.model import Device, Link, Topology, both_ways
from sits_topology.pcipaths import PciPath, ancestor, read_nics
from sits_topology.sysfs import read_cpu_nodes


@dataclass(frozen=True, slots=True)
class Host:
    sysfs: Path
    cpus: tuple[Device, ...]
    distances: Distances
    nics: tuple[Device, ...]
    nic_paths: tuple[PciPath, ...]

    @property
    def only_node(self) -> int | None:
        """Where everything must be; None when there are several NUMA nodes."""
        return self.cpus[0].numa_node if len(self.cpus) == 1 else None

    def links(self) -> Iterator[Link]:
        yield from cpu_links(self.cpus, self.distances)
        for nic in self.nics:
            yield from device_links(nic, self.cpus, self.distances)

    def links_of(self, device: Device, path: PciPath | None, on_c2c: bool) -> Iterator[Link]:
        """From a card to the CPU nodes and to the NICs."""
        yield from device_links(device, self.cpus, self.distances, on_c2c=on_c2c)
        for nic, nic_path in zip(self.nics, self.nic_paths, strict=True):
            kind = ancestor(path, nic_path)
            knowledge = Knowledge.KNOWN if kind is not LinkKind.UNSPECIFIED else Knowledge.UNKNOWN
            yield pcie_link(device, nic, kind, knowledge, self.distances)


def read_host(sysfs: Path) -> Host:
    nodes = read_cpu_nodes(sysfs)
    nics = read_nics(sysfs)
    host = Host(sysfs, nodes.devices, nodes.distances, (), tuple(path for _, path in nics))
    return replace(host, nics=tuple(_seated(device, host) for device, _ in nics))


def _seated(nic: Device, host: Host) -> Device:
    node = host.only_node if nic.numa_node is None else nic.numa_node
    return replace(nic, numa_node=node, missing=() if node is not None else ("numa_node",))


class HostSource:
    """CPU nodes as the devices that run batches, for machines without a GPU."""

    def __init__(self, sysfs: Path) -> None:
        self._sysfs = sysfs

    def read(self) -> Topology:
        host = read_host(self._sysfs)
        return Topology((*host.cpus, *host.nics), tuple(both_ways(host.links())), ("sysfs",))


def topology_of(
    host: Host, devices: Sequence[Device], links: Iterator[Link], sources: tuple[str, ...]
) -> Topology:
    """Cards first, then the host they are in."""
    everything = both_ways((*links, *host.links()))
    return Topology((*devices, *host.cpus, *host.nics), tuple(everything), sources)
