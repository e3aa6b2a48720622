"""Copies between the memories of NUMA nodes, by a CPU of the node that receives."""

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sits_topology.probe.affine import Cpus, on_cpus
from sits_topology.probe.plan import Path
from sits_topology.probe.timing import Timed


class MemoryCopier:
    """One thread copies, as one process of a service does; several would reach more."""

    def __init__(self, cpus: Cpus) -> None:
        self._cpus = cpus

    def open(self, path: Path, most_bytes: int) -> "OpenedMemory":
        return OpenedMemory(self._cpus[path.source], self._cpus[path.target], most_bytes)


class OpenedMemory:
    def __init__(self, sources: Sequence[int], targets: Sequence[int], most_bytes: int) -> None:
        self._targets = targets
        self._source, self._target = _memory(sources, most_bytes), _memory(targets, most_bytes)

    def copies(self, size_bytes: int) -> Timed:
        source, target = self._source[:size_bytes], self._target[:size_bytes]

        def timed(count: int) -> float:
            with on_cpus(self._targets):
                started = time.perf_counter()
                for _ in range(count):
                    np.copyto(target, source)
                return time.perf_counter() - started

        return timed

    def close(self) -> None:
        del self._source, self._target


def _memory(cpus: Sequence[int], size_bytes: int) -> NDArray[np.uint8]:
    with on_cpus(cpus):
        return np.ones(size_bytes, np.uint8)
