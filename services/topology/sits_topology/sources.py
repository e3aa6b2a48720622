"""Where a topology comes from: one `read()` each, called every period."""

from pathlib import Path
from typing import Protocol

from sits_topology.hostlinks import cpu_links
from sits_topology.model import Topology, both_ways
from sits_topology.sysfs import read_cpu_nodes

SYSFS = Path("/sys")


class Source(Protocol):
    def read(self) -> Topology:
        """The state of now. Raises `TopologyError` when there is none to be had."""
        ...


class SysfsSource:
    """CPU nodes as devices, for machines without a GPU."""

    def __init__(self, root: Path = SYSFS) -> None:
        self._root = root

    def read(self) -> Topology:
        nodes = read_cpu_nodes(self._root)
        links = both_ways(cpu_links(nodes.devices, nodes.distances))
        return Topology(nodes.devices, tuple(links), ("sysfs",))


def choose_source(setting: str) -> Source:
    """The source that `SITS_TOPOLOGY_SOURCE` names."""
    return SysfsSource()
