"""The affinity columns of `nvidia-smi topo -m`: a hint, for they show what the caller may use.

Values may be missing, doubled tabs stand between them, and a copy may run two together. So
they are taken from the right: only the CPU list is ever empty. A list that ran into the NUMA
node behind it (`168-2231`) is parted so that the list is one of another row, else so that the
node has one digit.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sits_topology.cpulist import is_list, parse_list
from sits_topology.model import TopologyError
from sits_topology.topo_matrix import CPU, GPU_NUMA, NUMA, Matrix, Row


@dataclass(frozen=True, slots=True)
class Affinity:
    cpus: tuple[int, ...] = ()
    numa_node: int | None = None
    """The lowest of the list: further ones have memory only (CXL, GPU memory on Grace)."""
    gpu_numa_node: int | None = None
    """Node of the GPU's own memory. Only Grace prints a number: the card hangs on C2C."""


def read_affinity(matrix: Matrix, row: Row) -> Affinity:
    """Empty where the columns make no sense; they are too weak a fact to refuse a file for."""
    values = dict(_values(matrix, row))
    try:
        nodes = parse_list(values.get(NUMA, ""))
        own = parse_list(values.get(GPU_NUMA, ""))
        return Affinity(
            parse_list(values.get(CPU, "")), min(nodes, default=None), min(own, default=None)
        )
    except TopologyError:
        return Affinity()


def _values(matrix: Matrix, row: Row) -> Iterator[tuple[str, str]]:
    words = row.rest.split()
    titles = matrix.affinity
    if len(words) == len(titles) - 1 and titles[0] == CPU and _ran_together(words[0], row.rest):
        words[:1] = _parted(words[0], _cpu_lists(matrix))
    if len(words) > len(titles):
        return
    for title, word in zip(reversed(titles), reversed(words), strict=False):
        yield title, "" if word == "N/A" else word


def _ran_together(word: str, rest: str) -> bool:
    """An empty CPU column shows as two tabs; else the first word must hold two columns."""
    return not rest.startswith("\t\t") and is_list(word) and not word.isdecimal()


def _parted(word: str, known: Iterable[str]) -> list[str]:
    for other in known:
        if word.startswith(other) and word[len(other) :].isdecimal():
            return [other, word[len(other) :]]
    return [word[:-1], word[-1]]


def _cpu_lists(matrix: Matrix) -> Iterator[str]:
    for row in matrix.rows.values():
        words = row.rest.split()
        if len(words) == len(matrix.affinity):
            yield words[0]
