"""How a service ends: asked by a signal or by `Control.Drain`, and the wait for accepted work."""

import threading
import time
from collections.abc import Callable

from sits_core.clock import Deadline

QUIET_S = 0.25
"""Idle for so long means that nothing sent before others knew is still under way."""
_POLL_S = 0.01


class Drain(threading.Event):
    """Set when the process shall end: turn unready, finish what was accepted, stop."""

    def __init__(self) -> None:
        super().__init__()
        self._grace_s = 0.0

    def begin(self, grace_s: float = 0.0) -> None:
        """Ask for the end; `grace_s` seconds for accepted work, 0 = as it is set. Who asks
        first decides."""
        if not self.is_set():
            self._grace_s = grace_s
            self.set()

    def grace_s(self, default_s: float) -> float:
        """Seconds that accepted work gets: those asked for, else `default_s`."""
        return self._grace_s or default_s


def finish(
    idle: Callable[[], bool], grace_s: float, sleep: Callable[[float], object] = time.sleep
) -> bool:
    """Wait until `idle` has held for `QUIET_S`, at most `grace_s`. Whether it did."""
    end, quiet = Deadline.after(grace_s), Deadline.after(QUIET_S)
    while not quiet.passed():
        if end.passed():
            return False
        if not idle():
            quiet = Deadline.after(QUIET_S)
        sleep(_POLL_S)
    return True
