"""What a result was measured on, and with which versions."""

import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from sits_bench import peers
from sits_bench.paths import BENCH, ROOT

PACKAGES: Final = (
    "grpcio", "protobuf", "pygrpc-native", "numpy", "onnxruntime", "tritonclient",
)  # fmt: skip


def describe() -> Mapping[str, object]:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{_cpu()}, {len(os.sched_getaffinity(0))} cores",
        "system": f"{platform.system()} {platform.release()}, {_python()}",
        "commit": _commit(),
        "packages": {name: _version(name) for name in PACKAGES},
        "peers": {peer: _peer(peer) for peer in peers.NAMES if peers.installed(peer)},
        "settings": {k: v for k, v in sorted(os.environ.items()) if k.startswith("SITS_")},
        "busy": f"load average {os.getloadavg()[0]:.2f} before",
    }


def may_go_first(nice: int) -> bool:
    """Whether this process may give threads that niceness, below 0."""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    except PermissionError:
        return False
    os.setpriority(os.PRIO_PROCESS, 0, own)
    return True


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _python() -> str:
    """With the date of its build: one version may be built with or without optimisation."""
    return f"Python {platform.python_version()} built on {platform.python_build()[1]}"


def _commit() -> str:
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603 - ours
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _peer(peer: str) -> str:
    lines = (BENCH / "peers" / peer / "requirements.txt").read_text().splitlines()
    return ", ".join(line for line in lines if line and not line.startswith("#"))
