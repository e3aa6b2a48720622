"""PCI devices as Linux sees them: their NUMA node, their link, the path between two, the NICs."""

import re
from dataclasses import dataclass
from pathlib import Path

from sits_scheduling.links import LinkKind
from sits_topology.bandwidth import pcie_gbps
from sits_topology.model import Device, DeviceKind
from sits_topology.sysfs import read_text

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_BUS_ID = re.compile(r"([0-9a-fA-F]+):([0-9a-fA-F]+):([0-9a-fA-F]+)(?:\.([0-7]))?")
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")

MAX_NICS = 16
"""More than any GPU board has beside it, and few enough for a snapshot to stay small."""


def normal_bus_id(text: str) -> str:
    """`00000000:3B:00.0` (NVML) → `0000:3b:00.0` (Linux, NCCL); empty for anything else."""
    match = _BUS_ID.fullmatch(text.strip())
    if match is None:
        return ""
    domain, bus, slot, function = (int(part or "0", 16) for part in match.groups())
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{function}"


@dataclass(frozen=True, slots=True)
class PciPath:
    """Where a PCI device hangs: root complex, then bridges from the root to the device."""

    root: str
    addresses: tuple[str, ...]
    numa_node: int | None
    gbps: float | None


def read_path(root: Path, bus_id: str) -> PciPath | None:
    """None when Linux does not know the device."""
    folder = root / "bus/pci/devices" / bus_id
    return _path_of(folder.resolve()) if bus_id and folder.exists() else None


def _path_of(folder: Path) -> PciPath | None:
    roots = [part for part in folder.parts if _ROOT.fullmatch(part)]
    addresses = tuple(part for part in folder.parts if _ADDRESS.fullmatch(part))
    if not addresses:
        return None
    own = next(parent for parent in (folder, *folder.parents) if parent.name == addresses[-1])
    return PciPath(roots[-1] if roots else "", addresses, _numa_node(own), _gbps(own))


def ancestor(one: PciPath | None, other: PciPath | None) -> LinkKind:
    """What joins two devices; UNSPECIFIED when Linux does not say enough."""
    if one is None or other is None:
        return LinkKind.UNSPECIFIED
    common = _common(one.addresses, other.addresses)
    if common:
        farther = max(len(one.addresses), len(other.addresses)) - common
        return LinkKind.PIX if farther <= 2 else LinkKind.PXB
    if one.root == other.root:
        return LinkKind.PHB
    if one.numa_node is None or other.numa_node is None:
        return LinkKind.UNSPECIFIED
    return LinkKind.NODE if one.numa_node == other.numa_node else LinkKind.SYS


def read_nics(root: Path) -> list[tuple[Device, PciPath]]:
    """Physical network devices, one for each PCI function; InfiniBand names go first."""
    found: dict[str, tuple[Device, PciPath]] = {}
    for folder in (*_entries(root / "class/infiniband"), *_entries(root / "class/net")):
        target = folder / "device"
        path = _path_of(target.resolve()) if target.exists() else None
        if path and not (target / "physfn").exists() and path.addresses[-1] not in found:
            found[path.addresses[-1]] = (_nic(folder.name, path), path)
    return list(found.values())[:MAX_NICS]


def _nic(name: str, path: PciPath) -> Device:
    return Device(
        id=f"nic:{name}",
        kind=DeviceKind.NIC,
        name=name,
        pci_bus_id=path.addresses[-1],
        numa_node=path.numa_node,
        pcie_gbps=path.gbps,
    )


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _common(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """Length of the common beginning. Functions of one slot share all but their last."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _numa_node(folder: Path) -> int | None:
    """Linux says -1 where the firmware does not tell."""
    text = read_text(folder / "numa_node")
    return int(text) if text.isdecimal() else None


def _gbps(folder: Path) -> float | None:
    """Highest speed at the width of now: idle devices slow down but keep their lanes."""
    speed, width = read_text(folder / "max_link_speed"), read_text(folder / "current_link_width")
    if "GT/s" not in speed or not width.isdecimal() or width == "0":
        return None
    return pcie_gbps(speed, int(width))
