"""Processors that a process of this machine wants for itself, and says so to the others.

A claim is a name of the kernel's, which goes with its process, however that ends. Containers with
a network of their own do not see each other's.
"""

import contextlib
import socket
from collections.abc import Iterable

NAME = "sits-python-cpu"


class Claim:
    """Of one processor, held until its end or that of the process."""

    def __init__(self, cpu: int, held: socket.socket) -> None:
        self.cpu, self._held = cpu, held
        self._asking: socket.socket | None = None

    def ask(self) -> None:
        """From now on others should keep off it: `kept_free`."""
        if self._asking is None:
            self._asking = _named(_asking(self.cpu))

    def leave(self) -> None:
        """They need not any more."""
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.close()

    def end(self) -> None:
        """Others may claim it."""
        self.leave()
        self._held.close()

    def __repr__(self) -> str:
        return f"<Claim of processor {self.cpu}{', asking' if self._asking else ''}>"


def claim(cpus: Iterable[int]) -> Claim | None:
    """The first of them that no other process has claimed."""
    for cpu in cpus:
        if (held := _named(f"{NAME}-{cpu}")) is not None:
            return Claim(cpu, held)
    return None


def kept_free(cpus: Iterable[int]) -> frozenset[int]:
    """Those that somebody asks to keep off."""
    found = set()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        for cpu in cpus:
            with contextlib.suppress(OSError):  # nobody has that name, or it is none of ours
                probe.connect(f"\0{_asking(cpu)}")
                found.add(cpu)
    return frozenset(found)


def _asking(cpu: int) -> str:
    return f"{NAME}-{cpu}-kept-free"


def _named(name: str) -> socket.socket | None:
    """None = another process has that name."""
    named = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        named.bind(f"\0{name}")
    except OSError:
        named.close()
        return None
    return named
