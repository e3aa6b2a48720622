"""How many CPUs this process may use: affinity mask and cgroup v2 quota, whichever is less."""

import os
from pathlib import Path


def cpus(root: Path = Path("/"), affinity: int | None = None) -> int:
    """Whole CPUs, at least 1. `root` is where `proc` and `sys` are."""
    allowed = len(os.sched_getaffinity(0)) if affinity is None else affinity
    quota = _quota(root)
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def threads_per_instance(available: int, instances: int) -> int:
    """CPUs divided among instances that run at once; never 0."""
    return max(1, available // max(1, instances))


def _quota(root: Path) -> float | None:
    """The smallest quota from our cgroup up to the root, in CPUs; None = unlimited."""
    base = root / "sys/fs/cgroup"
    own = base / cgroup_path(root).lstrip("/")
    folders = [own, *own.parents] if own.is_relative_to(base) else [base]
    found = [_cpu_max(folder) for folder in folders if folder.is_relative_to(base)]
    return min((quota for quota in found if quota is not None), default=None)


def cgroup_path(root: Path) -> str:
    """Of this process in cgroup v2; empty when it is in none."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return ""
    return next((line[3:] for line in lines if line.startswith("0::")), "")


def _cpu_max(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None
