"""What a service asks of its interpreter, its C library and its kernel before it serves."""

import ctypes
import gc
import os
import sys
from collections.abc import Mapping
from typing import Final

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
