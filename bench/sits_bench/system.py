"""What is measured: a server that can be started, and is then somewhere."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from sits_bench.loadgen import INFER


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
