"""Processor time by class of tenants: cgroup v2 `cpu.weight`, a threaded cgroup for each class.

With it every model has its instances once for each class, and the kernel divides the processors
among classes that have work. Known weakness: threads that a runtime starts by itself stay outside;
`intra_op_thread_count` 1 keeps a model's work on its instance's thread.
"""

import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from sits_executor.cpu_quota import cgroup_path
from sits_scheduling.tenants import Tier

WEIGHT_OF_ALL: Final = 1000
"""Divided by the shares. The process's own threads keep the kernel's default weight of 100."""


class CpuSharesMissing(Exception):
    """What of cgroup v2 is not there, or may not be written. Safe to show to an operator."""


class CpuShares:
    """`close` removes the cgroups whose threads have ended; the others stay, and are empty when
    the process is gone."""

    def __init__(self, folders: Mapping[Tier, Path]) -> None:
        self._folders = folders

    def enter(self, tier: Tier) -> None:
        """The calling thread belongs to this class from now on."""
        _write(self._folders[tier] / "cgroup.threads", str(threading.get_native_id()))

    def close(self) -> None:
        for folder in self._folders.values():
            with suppress(OSError):
                folder.rmdir()

    def __repr__(self) -> str:
        return f"<CpuShares {', '.join(folder.name for folder in self._folders.values())}>"


def open_cpu_shares(shares: Mapping[Tier, float], root: Path = Path("/")) -> CpuShares:
    """Makes a cgroup for each class below our own. `root` is where `proc` and `sys` are.

    Raises `CpuSharesMissing`.
    """
    own = root / "sys/fs/cgroup" / cgroup_path(root).lstrip("/")
    _require_controller(own)
    folders = {tier: own / f"sits-{os.getpid()}-{tier.name.lower()}" for tier in shares}
    try:
        for folder in folders.values():
            _make(folder)
        # Only now: with threaded children a cgroup may have processes and controllers at once.
        _write(own / "cgroup.subtree_control", "+cpu")
        for tier, folder in folders.items():
            weight = max(1, round(WEIGHT_OF_ALL * shares[tier]))
            _write(folder / "cpu.weight", str(weight))
            _try_to_enter(folder)
    except CpuSharesMissing:
        CpuShares(folders).close()
        raise
    return CpuShares(folders)


def _require_controller(own: Path) -> None:
    try:
        found = (own / "cgroup.controllers").read_text().split()
    except OSError:
        raise CpuSharesMissing(
            f"{own} is no cgroup v2: there is no cgroup.controllers in it; mount cgroup2 there"
        ) from None
    if "cpu" not in found:
        raise CpuSharesMissing(
            f"{own} has no cpu controller, it has: {' '.join(found) or 'none'}; its parent must "
            "delegate it"
        )


def _make(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise CpuSharesMissing(
            f"{folder.parent} is not writable ({error.strerror}): the container needs a cgroup of "
            "its own, mounted for writing"
        ) from None
    _write(folder / "cgroup.type", "threaded")


def _try_to_enter(folder: Path) -> None:
    """With a thread that ends at once."""
    failed: list[CpuSharesMissing] = []

    def enter() -> None:
        try:
            _write(folder / "cgroup.threads", str(threading.get_native_id()))
        except CpuSharesMissing as error:
            failed.append(error)

    thread = threading.Thread(target=enter, name="cgroup try")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text)
    except OSError as error:
        raise CpuSharesMissing(f"cannot write '{text}' to {file}: {error.strerror}") from None
