"""What is copied to measure a host: which pairs, how, and how many bytes. Pure."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import combinations, permutations, product
from math import comb
from random import Random
from typing import Final, NamedTuple

KIB, MIB = 1 << 10, 1 << 20
SIZES: Final = (4 * KIB, MIB, 16 * MIB, 256 * MIB)
"""The first tells the latency, the last the bandwidth."""
QUICK_SIZES: Final = (4 * KIB, 4 * MIB)
GANG_SIZES: Final = (2, 4, 8)
MOST_GANGS: Final = 8
"""Of one size: each needs a communicator of its own, which takes about a second."""


class How(StrEnum):
    """PEER: from GPU to GPU. PINNED, PAGEABLE: between a GPU and host memory of that sort.
    MEMORY: between the memories of two NUMA nodes, or
    inside one, by a CPU of the target's."""

    PEER = "peer"
    PINNED = "pinned"
    PAGEABLE = "pageable"
    MEMORY = "memory"


class Path(NamedTuple):
    """One direction between two devices, as topology names them."""

    source: str
    target: str
    how: How


def paths(gpus: Sequence[str], cpus: Sequence[str]) -> Iterator[Path]:
    """Every ordered pair; host memory on every NUMA node, pinned and pageable."""
    for one, other in permutations(gpus, 2):
        yield Path(one, other, How.PEER)
    for how in (How.PINNED, How.PAGEABLE):
        for gpu in gpus:
            for cpu in cpus:
                yield Path(cpu, gpu, how)
                yield Path(gpu, cpu, how)
    for one, other in product(cpus, repeat=2):
        yield Path(one, other, How.MEMORY)


def gangs(gpus: int, most: int = MOST_GANGS) -> list[tuple[int, ...]]:
    """Groups of 2, 4 and 8 of so many GPUs: all, or `most` of each size, drawn as ever."""
    rng = Random(1)  # noqa: S311 - the same ones in every run
    chosen: list[tuple[int, ...]] = []
    for size in GANG_SIZES:
        if size <= gpus:
            every = combinations(range(gpus), size)
            few = comb(gpus, size) <= most
            chosen += sorted(every) if few else sorted(rng.sample(list(every), most))
    return chosen
