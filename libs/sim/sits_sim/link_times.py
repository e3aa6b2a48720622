"""What moving data between GPUs takes, from measured collectives (data/link_times.csv).

Curves are straight lines between measured sizes, on logarithmic axes, made non-decreasing:
NCCL changes its algorithm with the size and single rows go up and down. Below 2 KiB the time
of 2 KiB holds, above 64 MiB time grows in proportion.
"""

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

import numpy as np

from sits_sim.load import Floats

ALL_REDUCE: Final = "all_reduce"
SEND_RECV: Final = "send_recv"

A100: Final = "a100_nvswitch"
BRIDGES: Final = "a100_bridges"
H100: Final = "h100_nvswitch"


@dataclass(frozen=True, slots=True)
class Curve:
    """Time by size of one measured group."""

    log_bytes: Floats
    log_us: Floats
    last_bytes: float

    def us(self, size_bytes: float) -> float:
        fitted = float(np.exp(np.interp(np.log(max(1.0, size_bytes)), self.log_bytes, self.log_us)))
        return fitted * max(1.0, size_bytes / self.last_bytes)


Key = tuple[str, str, int, int]


@cache
def curves() -> dict[Key, Curve]:
    """By table, operation, workers and workers on a node."""
    rows: dict[Key, list[tuple[float, float]]] = {}
    text = (resources.files("sits_sim") / "data" / "link_times.csv").read_text()
    for row in csv.DictReader(text.splitlines()):
        key = (row["table"], row["operation"], int(row["workers"]), int(row["per_node"]))
        rows.setdefault(key, []).append((float(row["bytes"]), float(row["median_us"])))
    return {key: _curve(points) for key, points in rows.items()}


def _curve(points: list[tuple[float, float]]) -> Curve:
    sizes, times = np.array(sorted(points)).T
    return Curve(np.log(sizes), np.log(np.maximum.accumulate(times)), float(sizes[-1]))


def switched_us(table: str, workers: int, size_bytes: float) -> float:
    """All-reduce inside a node with NVSwitch; 2, 4 and 8 GPUs were measured."""
    return curves()[table, ALL_REDUCE, workers, workers].us(size_bytes)


def bridged_us(size_bytes: float) -> float:
    """All-reduce of the two GPUs of an NVLink bridge."""
    return curves()[BRIDGES, ALL_REDUCE, 2, 2].us(size_bytes)


def pcie_us(workers: int, size_bytes: float) -> float:
    """All-reduce over PCIe: four GPUs of two bridge pairs were measured, other numbers are
    scaled by what a ring sends over each link."""
    measured = curves()[BRIDGES, ALL_REDUCE, 4, 4].us(size_bytes)
    return measured * ring_share(workers) / ring_share(4)


def network_us(table: str, workers: int, per_node: int, size_bytes: float) -> float:
    """All-reduce over the network. Where the group was not measured: two single GPUs, scaled
    as a ring. Between H100 nodes only sending was measured, and an all-reduce of two sends
    as much: that is its lower bound."""
    known = curves().get((table, ALL_REDUCE, workers, per_node))
    if known is not None:
        return known.us(size_bytes)
    operation = ALL_REDUCE if (table, ALL_REDUCE, 2, 1) in curves() else SEND_RECV
    return curves()[table, operation, 2, 1].us(size_bytes) * ring_share(workers)


@cache
def send_us(table: str, size_bytes: float, *, same_node: bool) -> float:
    """One GPU to another."""
    return curves()[table, SEND_RECV, 2, 2 if same_node else 1].us(size_bytes)


def ring_share(workers: int) -> float:
    """Bytes over each link of a ring all-reduce in units of the size: 2 (n - 1) / n."""
    return 2.0 * (workers - 1) / workers
