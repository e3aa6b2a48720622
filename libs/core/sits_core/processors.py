"""On which processors the threads of a service run, and which of them go first."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from sits_core.clock import Deadline
from sits_core.settings import AUTO_CPUS, SettingsError

NAMED_S: Final = 1.0
MOST: Final = 65_535
"""Number of a processor."""
CLAIM: Final = "sits-python-cpu"

_claims: list[socket.socket] = []
"""Held until the process ends, however it ends."""


def pin(cpus: str) -> None:
    """Run on these processors only, such as "0-3,8"; all threads that start from now on do.
    Empty = as before. Raises `SettingsError` when none of them is there."""
    if cpus:
        _run_on([0], _numbers(cpus, "SITS_CPUS"), f"SITS_CPUS={cpus}")


def pin_python(cpus: str, setting: str, *, last_first: bool = False) -> frozenset[int]:
    """The threads of Python that there are, and those they start, run on these processors only;
    native ones stay as they are. Of threads that share an interpreter lock one runs at a time: on
    one processor they find what the last one touched in its caches, and to wake one another
    they need no other processor.

    "auto" = one for which no other process asked so (the last of them, if `last_first`), where
    this process may use several. Returns which; empty = as before. Raises `SettingsError` when
    none of them is there.
    """
    chosen = _claim(last_first=last_first) if cpus == AUTO_CPUS else _numbers(cpus, setting)
    if chosen:
        threads = [thread.native_id for thread in threading.enumerate()]
        _run_on([each for each in threads if each is not None], chosen, f"{setting}={cpus}")
    return chosen


def keep_off(name: str, cpus: Collection[int]) -> None:
    """Native threads of that name leave these processors to others, if they may use more."""
    for thread in _named(name) if cpus else ():
        if rest := os.sched_getaffinity(thread) - frozenset(cpus):
            os.sched_setaffinity(thread, rest)


def prefer(name: str, nice: int, setting: str) -> None:
    """Waits for native threads of that name, which have just been started, and gives them this
    niceness: below 0 they go before others. 0 = as before. Raises `SettingsError` where this
    process may not."""
    limit = Deadline.after(NAMED_S)
    while not (threads := _named(name)) and not limit.passed():
        time.sleep(NAMED_S / 100)
    for thread in threads if nice else ():
        try:
            os.setpriority(os.PRIO_PROCESS, thread, nice)
        except PermissionError:
            raise SettingsError(f"{setting}={nice}: this process lacks CAP_SYS_NICE") from None


def _named(name: str) -> list[int]:
    """A thread gives itself its name, a moment after it was started."""
    found = []
    for each in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # another one has just ended
            if (each / "comm").read_text().strip() == name:
                found.append(int(each.name))
    return found


def _claim(*, last_first: bool) -> frozenset[int]:
    """Nothing where all are taken, or there is only one. A name of the kernel's for each, which
    goes with its process; containers with a network of their own do not see each other's."""
    allowed = sorted(os.sched_getaffinity(0), reverse=last_first)
    for cpu in allowed if len(allowed) > 1 else ():
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0{CLAIM}-{cpu}")
        except OSError:
            claim.close()
        else:
            _claims.append(claim)
            return frozenset({cpu})
    return frozenset()


def _run_on(threads: Iterable[int], cpus: Collection[int], setting: str) -> None:
    """Thread 0 = this one, and by inheritance all that it starts."""
    for thread in threads:
        try:
            os.sched_setaffinity(thread, cpus)
        except ProcessLookupError:  # it has just ended
            continue
        except OSError:
            there = ",".join(map(str, sorted(os.sched_getaffinity(0))))
            raise SettingsError(f"{setting}: this process may use {there}") from None


def _numbers(cpus: str, setting: str) -> frozenset[int]:
    found: set[int] = set()
    for part in filter(None, cpus.split(",")):
        first, _, last = part.partition("-")
        if not int(first) <= int(last or first) <= MOST:
            raise SettingsError(
                f"{setting}={cpus}: {part} is no range of processors, expected such as 0-3"
            )
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
