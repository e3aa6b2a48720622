"""A fake `/sys` for tests: NUMA nodes, PCI devices and NICs in a folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path


def make_sysfs(
    root: Path, nodes: Mapping[int, str], distances: Sequence[Sequence[int]] = ()
) -> Path:
    """A `/sys` with NUMA nodes (number → cpulist) of 64 GiB each."""
    for place, (number, cpus) in enumerate(sorted(nodes.items())):
        row = distances[place] if distances else [10 if n == number else 20 for n in sorted(nodes)]
        folder = root / f"devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
        (folder / "distance").write_text(" ".join(map(str, row)) + "\n")
        (folder / "meminfo").write_text(
            f"Node {number} MemTotal:       67108864 kB\n"
            f"Node {number} MemFree:        33554432 kB\n"
            f"Node {number} Inactive(file):  1048576 kB\n"
        )
    return root


def add_pci(root: Path, path: str, numa_node: int = -1, **files: str) -> Path:
    """A PCI device at `path` below `/sys/devices`, such as pci0000:00/0000:00:01.0/0000:01:00.0."""
    folder = root / "devices" / path
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"numa_node": str(numa_node), **files}.items():
        (folder / name).write_text(f"{text}\n")
    known = root / "bus/pci/devices"
    known.mkdir(parents=True, exist_ok=True)
    (known / folder.name).symlink_to(folder)
    return folder


def add_nic(root: Path, name: str, pci: Path, kind: str = "net") -> None:
    """A network device `name` of class `kind` on the PCI device `pci`."""
    folder = root / "class" / kind / name
    folder.mkdir(parents=True)
    (folder / "device").symlink_to(pci)
