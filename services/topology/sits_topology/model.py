"""The one model that every reader fills: devices, and how each pair of them is connected."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

from sits_scheduling.links import Knowledge, LinkKind


class TopologyError(Exception):
    """A source was refused; the text says what was expected and what came."""


class DeviceKind(Enum):
    """Numbers are those of sits.v1.DeviceKind."""

    CPU = 1
    GPU = 2
    MIG = 3
    NIC = 4


class Health(Enum):
    """Numbers are those of sits.v1.DeviceHealth."""

    GOOD = 1
    DEGRADED = 2
    BAD = 3


MAX_DEVICES = 256
"""In a file; no host has as many, and work grows with their square."""


@dataclass(frozen=True, slots=True)
class Device:
    """Something that runs batches or carries them. None = not known, which is not zero."""

    id: str
    kind: DeviceKind
    name: str = ""
    pci_bus_id: str = ""
    numa_node: int | None = None
    """Host NUMA node next to it; the node itself for a CPU."""
    index: int | None = None
    """Position in NVML order, which need not be CUDA's."""
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None
    utilization: float | None = None
    """0.0 to 1.0"""
    cpus: tuple[int, ...] = ()
    pcie_gbps: float | None = None
    health: Health = Health.GOOD
    health_reason: str = ""
    missing: tuple[str, ...] = ()
    """Facts that the source would not tell, by name."""


@dataclass(frozen=True, slots=True)
class Link:
    """The best path from one device to another."""

    source: str
    target: str
    kind: LinkKind
    knowledge: Knowledge
    lanes: int | None = None
    bandwidth_gbps: float | None = None
    numa_distance: int | None = None
    latency_us: float | None = None
    measured: bool = False

    def reversed(self) -> "Link":
        return replace(self, source=self.target, target=self.source)


@dataclass(frozen=True, slots=True)
class Topology:
    """One host: a link for every ordered pair of devices, NICs among themselves aside."""

    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    sources: tuple[str, ...]

    def device(self, device_id: str) -> Device:
        return next(device for device in self.devices if device.id == device_id)

    def link(self, source: str, target: str) -> Link:
        return next(li for li in self.links if (li.source, li.target) == (source, target))

    def of_kind(self, kind: DeviceKind) -> list[Device]:
        return [device for device in self.devices if device.kind is kind]


def both_ways(links: Iterable[Link]) -> Iterator[Link]:
    """Each link and its reverse."""
    for link in links:
        yield link
        yield link.reversed()
