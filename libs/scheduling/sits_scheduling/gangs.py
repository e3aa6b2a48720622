"""Where work goes that needs several devices at once: gangs of 2, 4 or 8 in one link domain."""

import random
from collections.abc import Sequence
from itertools import combinations
from math import comb
from typing import Final, NamedTuple, Protocol

import numpy as np

from sits_scheduling.columns import Flags, Floats, Ints
from sits_scheduling.fabric import Cluster
from sits_scheduling.rings import Group, best_group

MOST_GROUPS: Final = 256
"""Groups of one size kept of a node: all of 8 devices, a spread of larger nodes."""
NODES_SEEN: Final = 32
"""Nodes that one decision looks at; all of them when these have no room."""


class Gang(NamedTuple):
    """Devices by their number in the cluster, and what their collective is expected to take."""

    devices: tuple[int, ...]
    collective_us: float


class GangPlacement(Protocol):
    """Chooses the devices of a gang; reserving them is the caller's."""

    @property
    def name(self) -> str: ...

    def place(self, size: int, size_bytes: float, wait_us: Floats, allowed: Flags) -> Gang | None:
        """`wait_us` and `allowed` are by device; None when no gang can be had."""
        ...


class RandomGangs:
    """Any devices that are allowed: what a scheduler does that does not know the topology."""

    name = "random"

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self._cluster, self._rng = cluster, rng

    def place(self, size: int, size_bytes: float, wait_us: Floats, allowed: Flags) -> Gang | None:
        free = np.flatnonzero(allowed)
        if len(free) < size:
            return None
        devices = tuple(int(free[i]) for i in self._rng.sample(range(len(free)), size))
        return Gang(devices, self._cluster.all_reduce_us(devices, size_bytes))


class _Groups(NamedTuple):
    """Groups of one size: members [groups, size], the node of each, and all-reduce time as a
    start and a rate."""

    members: Ints
    start_us: Floats
    us_per_byte: Floats
    of_node: list[slice]


class TopologyGangs:
    """The gang that is done first: the longest wait of its members + its collective.

    A gang stays in one node, whose links are one domain; the collective's time comes from
    the bottleneck of its best ring, so that with equal waits the widest group wins (D2).
    Groups of nodes with up to 8 devices are enumerated; of larger ones each device's best
    group is (exact up to 16, see `rings`), and when none of these is free the best one among
    the free devices is searched.

    Weakness: one gang at a time, first come first served; it does not keep wide groups for
    those who come later, beyond preferring devices that others miss least.
    """

    name = "topo_aware"

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self._cluster, self._rng = cluster, rng
        self._groups: dict[int, _Groups] = {}
        self._shapes: dict[tuple[bytes, int], list[Group]] = {}

    def __repr__(self) -> str:
        return f"<TopologyGangs {self._cluster!r}>"

    def place(self, size: int, size_bytes: float, wait_us: Floats, allowed: Flags) -> Gang | None:
        groups = self._of_size(size)
        nodes = len(groups.of_node)
        if nodes > NODES_SEEN:
            seen = [groups.of_node[n] for n in self._rng.sample(range(nodes), NODES_SEEN)]
            rows = np.concatenate([np.arange(s.start, s.stop) for s in seen])
            gang = self._best(groups, rows, size_bytes, wait_us, allowed)
            if gang is not None:
                return gang
        rows = np.arange(len(groups.members))
        return self._best(groups, rows, size_bytes, wait_us, allowed) or self._searched(
            size, size_bytes, allowed
        )

    def _best(
        self, groups: _Groups, rows: Ints, size_bytes: float, wait_us: Floats, allowed: Flags
    ) -> Gang | None:
        members = groups.members[rows]
        free = allowed[members].all(axis=1)
        if not free.any():
            return None
        collective = groups.start_us[rows] + size_bytes * groups.us_per_byte[rows]
        done = np.where(free, wait_us[members].max(axis=1) + collective, np.inf)
        best = np.flatnonzero(done <= done.min() + 1e-9)
        row = int(best[self._rng.randrange(len(best))])
        return Gang(tuple(int(device) for device in members[row]), float(collective[row]))

    def _searched(self, size: int, size_bytes: float, allowed: Flags) -> Gang | None:
        """The widest group among the free devices of any node, where lists are not complete."""
        found: list[Gang] = []
        for node, start in zip(self._cluster.nodes, self._cluster.starts, strict=True):
            if comb(len(node), size) <= MOST_GROUPS:
                continue
            free = [int(i) for i in np.flatnonzero(allowed[start : start + len(node)])]
            group = best_group(node.gbps, free, size)
            if group is not None:
                devices = tuple(start + member for member in group.members)
                found.append(Gang(devices, self._cluster.all_reduce_us(devices, size_bytes)))
        return min(found, key=lambda gang: gang.collective_us, default=None)

    def _of_size(self, size: int) -> _Groups:
        known = self._groups.get(size)
        if known is None:
            known = self._groups[size] = self._enumerate(size)
        return known

    def _enumerate(self, size: int) -> _Groups:
        members: list[tuple[int, ...]] = []
        of_node: list[slice] = []
        times: list[tuple[float, float]] = []
        for node, start in zip(self._cluster.nodes, self._cluster.starts, strict=True):
            first = len(members)
            for group in self._of_shape(node.gbps, size):
                devices = tuple(start + member for member in group.members)
                members.append(devices)
                times.append(_line(self._cluster, devices))
            if len(members) > first:
                of_node.append(slice(first, len(members)))
        start_us, us_per_byte = np.array(times).reshape(-1, 2).T
        shape = (len(members), size)
        return _Groups(
            np.array(members, dtype=np.intp).reshape(shape), start_us, us_per_byte, of_node
        )

    def _of_shape(self, gbps: Floats, size: int) -> list[Group]:
        """The groups of one kind of node, found once."""
        key = (gbps.tobytes(), size)
        known = self._shapes.get(key)
        if known is None:
            known = self._shapes[key] = groups_of(gbps, size)
        return known


def groups_of(gbps: Floats, size: int) -> list[Group]:
    """All groups of a small node; of a large one each device's best."""
    count = len(gbps)
    if size > count:
        return []
    if comb(count, size) <= MOST_GROUPS:
        chosen: list[Sequence[int]] = [list(c) for c in combinations(range(count), size)]
    else:
        nearest = np.argsort(-(gbps + np.diag(np.full(count, np.inf))), axis=1, kind="stable")
        chosen = [row[: min(count, 2 * size)].tolist() for row in nearest]
    found = (best_group(gbps, among, size) for among in chosen)
    unique = {frozenset(group.members): group for group in found if group is not None}
    return list(unique.values())


def _line(cluster: Cluster, devices: Sequence[int]) -> tuple[float, float]:
    """The all-reduce time of a group as a start and a rate."""
    start = cluster.all_reduce_us(devices, 0.0)
    return start, (cluster.all_reduce_us(devices, 1e6) - start) / 1e6
