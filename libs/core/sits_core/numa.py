"""Which NUMA node of the host this process is bound to."""

import os
from pathlib import Path

_NODES = Path("/sys/devices/system/node")


def bound_node(nodes: Path = _NODES, cpus: frozenset[int] | None = None) -> int:
    """The NUMA node that holds all CPUs this process may use; -1 when it is not bound."""
    allowed = frozenset(os.sched_getaffinity(0)) if cpus is None else cpus
    for folder in sorted(nodes.glob("node[0-9]*")):
        if allowed <= _cpu_list(folder / "cpulist"):
            return int(folder.name.removeprefix("node"))
    return -1


def _cpu_list(path: Path) -> frozenset[int]:
    """`0-3,8` → {0, 1, 2, 3, 8}; empty when it cannot be read."""
    try:
        parts = path.read_text().strip().split(",")
        ranges = [part.partition("-") for part in parts if part]
        return frozenset(
            cpu for low, _, high in ranges for cpu in range(int(low), int(high or low) + 1)
        )
    except (OSError, ValueError):
        return frozenset()
