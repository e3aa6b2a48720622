"""What a service asks of its interpreter, its C library and its kernel before it serves."""

import contextlib
import ctypes
import gc
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sits_core.clock import Deadline
from sits_core.settings import SettingsError

SWITCH_INTERVAL_S: Final = 0.0005
"""A thread that has work waits this long for one that computes in Python, not 5 ms: the
thread that brings answers must not wait for the one that takes requests in."""

MMAP_THRESHOLD_BYTES: Final = 32 << 20
"""The most glibc takes. Smaller blocks come from the heap, whose pages are there already:
fresh ones from the kernel cost more than writing a tensor into them."""
TRIM_THRESHOLD_BYTES: Final = 256 << 20
"""Free memory at the end of the heap that a busy process keeps; `sits_core.memory` gives it
back once it is idle."""

TIMER_SLACK_NS: Final = 1
"""By default the kernel may wake a sleeper 50 µs late to wake several at once."""

YOUNG_OBJECTS: Final = 50_000
"""So many new objects until the cyclic collector looks at them, not 700: requests leave nothing
for it, but those under way are looked at again and again."""

NAMED_S: Final = 1.0

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_PR_SET_TIMERSLACK: Final = 29
_OPERATORS_OWN: Final = ("GLIBC_TUNABLES", "MALLOC_")


def tune(environ: Mapping[str, str] = os.environ, libc: ctypes.CDLL | None = None) -> None:
    """Call before there are other threads: they inherit the timer slack, and take their
    memory from the one arena. What this system does not have is left out; an operator's own
    settings of malloc stay."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
    libc = libc or ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(TIMER_SLACK_NS))
    if hasattr(libc, "mallopt") and not any(name.startswith(_OPERATORS_OWN) for name in environ):
        _set_malloc(libc)


def _set_malloc(libc: ctypes.CDLL) -> None:
    """One arena: Python threads allocate one at a time anyway, and what one thread freed the
    next one can use."""
    libc.mallopt(_M_ARENA_MAX, 1)
    libc.mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
    libc.mallopt(_M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)


def pin(cpus: str) -> None:
    """Run on these processors only, such as "0-3,8"; all threads that start from now on do.
    Empty = as before. Raises `SettingsError` when none of them is there."""
    if cpus:
        _run_on(0, cpus, "SITS_CPUS")


def pin_python(cpus: str, setting: str) -> None:
    """The threads of Python that there are, and those they start, run on these processors only;
    native ones stay as they are. Of threads that share an interpreter lock one runs at a time: on
    one processor they find what the last one touched in its caches. Empty = as before. Raises
    `SettingsError` when none of them is there."""
    for thread in threading.enumerate() if cpus else ():
        if thread.native_id is not None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                _run_on(thread.native_id, cpus, setting)


def prefer(name: str, nice: int, setting: str) -> None:
    """Native threads of that name, which have just been started, get this niceness: below 0 they
    go before others. 0 = as before. Raises `SettingsError` where this process may not."""
    limit = Deadline.after(NAMED_S)
    while nice and not (found := _named(name)) and not limit.passed():
        time.sleep(NAMED_S / 100)
    for thread in found if nice else ():
        try:
            os.setpriority(os.PRIO_PROCESS, thread, nice)
        except PermissionError:
            raise SettingsError(f"{setting}={nice}: this process lacks CAP_SYS_NICE") from None


def _named(name: str) -> list[int]:
    """A thread gives itself its name, a moment after it was started."""
    folders = Path("/proc/self/task").iterdir()
    return [int(each.name) for each in folders if (each / "comm").read_text().strip() == name]


def _run_on(thread: int, cpus: str, setting: str) -> None:
    """`thread` 0 = this one, and by inheritance all that it starts."""
    chosen = {cpu for part in cpus.split(",") for cpu in _range(part)}
    try:
        os.sched_setaffinity(thread, chosen)
    except ProcessLookupError:
        raise
    except OSError:
        there = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        raise SettingsError(f"{setting}={cpus}: this process may use {there}") from None


def _range(part: str) -> range:
    first, _, last = part.partition("-")
    return range(int(first), int(last or first) + 1)
