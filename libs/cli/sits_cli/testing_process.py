"""What the kernel tells about a process of the mesh, for tests."""

import os
from pathlib import Path


def private_bytes(pid: int) -> int:
    """Memory of its own, shared memory not counted."""
    fields = Path(f"/proc/{pid}/status").read_text().partition("RssAnon:")[2].split()
    return int(fields[0]) * 1024


def thread_count(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def descriptor_count(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def children(pid: int) -> str:
    """Pids of child processes, over all threads."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return " ".join((task / "children").read_text() for task in tasks).strip()


def shared_files(deployment: str, directory: str = "/dev/shm") -> dict[str, int]:  # noqa: S108
    """Bytes of each file in shared memory that the mesh with this SITS_REDIS_PREFIX has there."""
    found: dict[str, int] = {}
    for path in Path(directory).glob(f"sits-{deployment}-*"):
        try:
            found[path.name] = path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return found
