"""Gives the system back what large messages leave behind.

gRPC cuts large messages into many small blocks. Freed, they stay with glibc: as much as
the largest burst ever took, held in place by some block behind them that lives on.
"""

import ctypes
import time
from collections.abc import Callable

from sits_core.keepers import Periodic

PERIOD_S = 5.0
KEPT_BYTES = 64 << 20
"""Free memory that a process may keep: less is not worth the trouble."""
BUSY_SHARE = 0.2
"""Giving back stops whoever allocates, for about 0.1 ms a megabyte. A process that used more
of a CPU than this since the last look would soon need the memory again."""

_FIELDS = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
    "keepcost",
)  # fmt: skip


class _Counts(ctypes.Structure):
    """`struct mallinfo2`."""

    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS]
    fordblks: int


class Trimmer:
    """Call it now and then: gives back free memory while the process is nearly idle."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.process_time,
    ) -> None:
        self._clock, self._cpu_clock = clock, cpu_clock
        self._looked_s, self._used_s = clock(), cpu_clock()

    def __call__(self) -> None:
        looked_s, used_s = self._clock(), self._cpu_clock()
        share = (used_s - self._used_s) / max(looked_s - self._looked_s, 1e-9)
        self._looked_s, self._used_s = looked_s, used_s
        if share < BUSY_SHARE and free_bytes() > KEPT_BYTES:
            ctypes.CDLL(None).malloc_trim(0)


def trimmer() -> Periodic:
    """Keeps trimming for the life of a process. Not started yet."""
    return Periodic(Trimmer(), PERIOD_S, "memory trimmer")


def free_bytes() -> int:
    """Memory that the process has but does not use; 0 where glibc does not tell."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        return 0
    libc.mallinfo2.restype = _Counts
    counts: _Counts = libc.mallinfo2()
    return counts.fordblks
