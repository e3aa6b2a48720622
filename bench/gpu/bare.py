"""Copies timed in the plainest way, to judge the probe by: a host clock around many of them."""

import time
from collections.abc import Iterator
from itertools import permutations
from statistics import median
from typing import Final, NamedTuple

import torch

SIZE: Final = 256 << 20
COPIES, ROUNDS = 20, 5


class Bare(NamedTuple):
    """`source` and `target` are CUDA's numbers; -1 = pinned host memory."""

    source: int
    target: int
    gbps: float


HOST: Final = -1


def bare_copies(size_bytes: int = SIZE) -> Iterator[Bare]:
    """Every pair of GPUs, and each GPU with the host, in both directions."""
    count = torch.cuda.device_count()
    pairs = [*permutations(range(count), 2)]
    pairs += [(HOST, gpu) for gpu in range(count)] + [(gpu, HOST) for gpu in range(count)]
    for source, target in pairs:
        yield Bare(source, target, _gbps(source, target, size_bytes))


def _gbps(source: int, target: int, size_bytes: int) -> float:
    one, other = _memory(source, size_bytes), _memory(target, size_bytes)
    for _ in range(3):
        other.copy_(one, non_blocking=True)
    _wait(source, target)
    seconds = median(_seconds(one, other, source, target) for _ in range(ROUNDS))
    return size_bytes / seconds / 1e9


def _seconds(one: torch.Tensor, other: torch.Tensor, source: int, target: int) -> float:
    started = time.perf_counter()
    for _ in range(COPIES):
        other.copy_(one, non_blocking=True)
    _wait(source, target)
    return (time.perf_counter() - started) / COPIES


def _memory(device: int, size_bytes: int) -> torch.Tensor:
    if device == HOST:
        return torch.ones(size_bytes, dtype=torch.uint8).pin_memory()
    return torch.ones(size_bytes, dtype=torch.uint8, device=f"cuda:{device}")


def _wait(*devices: int) -> None:
    for device in devices:
        if device != HOST:
            torch.cuda.synchronize(device)
