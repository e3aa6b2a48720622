"""Starts a program that dies with the process that started it.

Run as a script, it asks the kernel to be killed with its parent and becomes the program.
A fork hook would do the same, but is unsafe in a process that has threads.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1


def command(argv: Sequence[str]) -> list[str]:
    """`argv` tied to the thread that starts it: start it from one that lives long enough."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *argv]


def become(parent_pid: int, argv: list[str]) -> None:
    """Replace this process by `argv`, killed when its parent dies. Linux only; else untied."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent_pid:  # it died before the kernel knew our wish
            sys.exit(1)
    os.execvp(argv[0], argv)  # noqa: S606 - becoming the named program is the point


if __name__ == "__main__":
    become(int(sys.argv[1]), sys.argv[2:])
