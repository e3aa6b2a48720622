"""What is measured: a server that can be started, and is then somewhere."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from sits_bench.loadgen import INFER, BenchError

POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Running:
    """A server that answers. `pids` are the processes whose CPU time counts, looked up anew
    since servers start more as they please."""

    target: str
    pids: Callable[[], list[int]]
    path: str = INFER
    http1: bool = False
    metrics: tuple[str, ...] = ()
    """Where Prometheus metrics are served, host:port."""


class System(Protocol):
    @property
    def name(self) -> str: ...

    def start(self) -> AbstractContextManager[Running]:
        """Ready when entered, gone when left. Raises `BenchError`."""
        ...


def until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Wait for it. Raises `BenchError` when it takes too long."""
    limit = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > limit:
            raise BenchError(f"no {what} within {timeout_s:g} s")
        time.sleep(POLL_S)
