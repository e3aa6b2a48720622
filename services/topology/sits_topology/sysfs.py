"""What Linux tells without any driver's help: CPU nodes, their distances, their memory."""

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from sits_topology.cpulist import parse_list
from sits_topology.model import Device, DeviceKind

_NODE = re.compile(r"node(\d+)")
_MEMINFO = re.compile(r"(\w+(?:\(\w+\))?):\s+(\d+) kB")


@dataclass(frozen=True, slots=True)
class CpuNodes:
    """NUMA nodes that have CPUs, and the ACPI distance between any two nodes."""

    devices: tuple[Device, ...]
    distances: dict[tuple[int, int], int]


def cpu_id(numa_node: int) -> str:
    return f"cpu:{numa_node}"


def read_cpu_nodes(root: Path) -> CpuNodes:
    """Nodes below `root` (`/sys`). A kernel without NUMA counts as one node 0."""
    folders = _node_folders(root)
    devices = [_cpu_device(number, folder) for number, folder in sorted(folders.items())]
    with_cpus = tuple(device for device in devices if device.cpus)
    return CpuNodes(with_cpus or (_whole_machine(),), _distances(folders))


def read_text(path: Path) -> str:
    """Content without surrounding space; empty when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _node_folders(root: Path) -> dict[int, Path]:
    found: dict[int, Path] = {}
    with contextlib.suppress(OSError):
        for folder in (root / "devices/system/node").iterdir():
            if match := _NODE.fullmatch(folder.name):
                found[int(match[1])] = folder
    return found


def _cpu_device(number: int, folder: Path) -> Device:
    memory = {name: int(kb) << 10 for name, kb in _MEMINFO.findall(read_text(folder / "meminfo"))}
    return Device(
        id=cpu_id(number),
        kind=DeviceKind.CPU,
        name=f"CPU NUMA node {number}",
        numa_node=number,
        cpus=parse_list(read_text(folder / "cpulist")),
        memory_total_bytes=memory.get("MemTotal"),
        memory_free_bytes=_reclaimable(memory),
        missing=() if "MemTotal" in memory else ("memory",),
    )


def _reclaimable(memory: dict[str, int]) -> int | None:
    """Free now, or page cache that was not read for a while."""
    if "MemFree" not in memory:
        return None
    return memory["MemFree"] + memory.get("Inactive(file)", 0)


def _whole_machine() -> Device:
    return Device(
        id=cpu_id(0),
        kind=DeviceKind.CPU,
        name="CPU",
        numa_node=0,
        cpus=tuple(sorted(os.sched_getaffinity(0))),
        missing=("numa", "memory"),
    )


def _distances(folders: dict[int, Path]) -> dict[tuple[int, int], int]:
    """Each row of `distance` lists the nodes in ascending order."""
    order = sorted(folders)
    found: dict[tuple[int, int], int] = {}
    for number in order:
        row = read_text(folders[number] / "distance").split()
        if len(row) == len(order):
            found |= {(number, other): int(value) for other, value in zip(order, row, strict=True)}
    return found
