"""All-reduce over the gangs that the dispatcher would choose, over random ones, and against the
simulator's model of them."""

import random
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import median
from typing import Final

import numpy as np

from gpu.links import Links
from sits_protos.v1 import topology_pb2 as pb
from sits_scheduling.fabric import Cluster, Node
from sits_scheduling.gangs import GangPlacement, RandomGangs, TopologyGangs
from sits_sim.figures import Figure, higher
from sits_sim.link_times import H100, switched_us
from sits_topology.probe.collectives import all_reduces
from sits_topology.probe.timing import AllReduce, Gang

LEAST: Final = 0.98
GANG_SIZES: Final = (2, 4, 8)
DRAWS: Final = 20
MOST: Final = 12
"""Gangs of one size that are measured: each takes a second or two to set up."""
DECIDING_BYTES: Final = 64 << 20
SIZES: Final = (4 << 10, 1 << 20, 16 << 20, DECIDING_BYTES, 256 << 20)


def node_of(snapshot: pb.TopologySnapshot, gpus: Sequence[str]) -> Node:
    """As the dispatcher has it: devices and what moving a megabyte between them costs."""
    costs = {
        (getattr(w, "from"), w.to): w.cost_s_per_mb
        for w in snapshot.weights
        if getattr(w, "from") != w.to
    }
    return Node.of_costs(snapshot.host, gpus, costs)


def chosen(placement: GangPlacement, size: int, count: int) -> list[Gang]:
    """What it answers, `DRAWS` times over: it breaks ties at random."""
    free, idle = np.ones(count, bool), np.zeros(count)
    found = [placement.place(size, DECIDING_BYTES, idle, free) for _ in range(DRAWS)]
    return [tuple(sorted(gang.devices)) for gang in found if gang is not None]


def measure(links: Links, device: str = "cuda") -> tuple[list[Figure], list[dict[str, object]]]:
    """Figures, and every time for the kept results. Raises `RuntimeError`."""
    gpus = list(links.report.gpus)
    cluster = Cluster([node_of(links.published, gpus)])
    topo = TopologyGangs(cluster, random.Random(1))  # noqa: S311 - repeatable
    anyhow = RandomGangs(cluster, random.Random(2))  # noqa: S311 - repeatable
    sizes = [size for size in GANG_SIZES if size <= len(gpus)]
    ours = {size: chosen(topo, size, len(gpus)) for size in sizes}
    theirs = {size: chosen(anyhow, size, len(gpus)) for size in sizes}
    wanted = [gang for size in sizes for gang in _some(ours[size], theirs[size], len(gpus), size)]
    found = all_reduces(wanted, SIZES, device)
    times = {(one.gang, one.size_bytes): one for one in found}
    figures = [f for size in sizes for f in _of_size(size, ours[size], theirs[size], times)]
    return [*figures, *_against_models(cluster, sizes, found)], [_row(one) for one in found]


def _some(ours: Sequence[Gang], theirs: Sequence[Gang], count: int, size: int) -> list[Gang]:
    """Those that were chosen first, then random ones, then the rest, up to `MOST`."""
    every = list(combinations(range(count), size))
    return list(dict.fromkeys([*ours, *theirs, *every]))[:MOST]


def _of_size(
    size: int, ours: Sequence[Gang], theirs: Sequence[Gang],
    times: Mapping[tuple[Gang, int], AllReduce],
) -> list[Figure]:  # fmt: skip
    def bus(gang: Gang) -> float:
        return times[gang, DECIDING_BYTES].bus_gbps

    known = {gang for gang, _ in times if len(gang) == size}
    best = max(bus(gang) for gang in known)
    mine = median(bus(gang) for gang in ours if gang in known)
    any_ = median(bus(gang) for gang in theirs if gang in known)
    return [
        higher(f"gangs.best: {size} GPUs, 64 MiB, gangs chosen by topo_aware against the best "
               f"of {len(known)}", mine, "GB/s", best, LEAST),
        higher(f"gangs.random: {size} GPUs, 64 MiB, chosen against random", mine, "GB/s", any_, 0),
    ]  # fmt: skip


def _against_models(
    cluster: Cluster, sizes: Sequence[int], found: Sequence[AllReduce]
) -> list[Figure]:
    """The scheduler's ring model with the published costs, and the table that the simulator
    uses for H100 nodes with NVSwitch, at each measured size."""
    figures = []
    for size in sizes:
        for size_bytes in SIZES:
            own = [one for one in found if len(one.gang) == size and one.size_bytes == size_bytes]
            real_us = median(one.timing.seconds for one in own) * 1e6
            model_us = cluster.all_reduce_us(own[0].gang, size_bytes)
            table_us = switched_us(H100, size, size_bytes)
            what = f"{size} GPUs, {size_bytes >> 10} KiB"
            figures.append(_model(f"gangs.model: {what}, scheduler's model", model_us, real_us))
            figures.append(_model(f"gangs.table: {what}, simulator's table", table_us, real_us))
    return figures


def _model(name: str, value_us: float, real_us: float) -> Figure:
    return Figure(name, value_us, "µs", real_us, value_us / real_us)


def _row(one: AllReduce) -> dict[str, object]:
    return {
        "gang": list(one.gang),
        "bytes": one.size_bytes,
        "us": round(one.timing.seconds * 1e6, 2),
        "spread": round(one.timing.spread, 4),
        "bus_gbps": round(one.bus_gbps, 2),
    }
