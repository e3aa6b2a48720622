"""Which GPUs a model gets that needs several at once (D2), by the weights that are published."""

import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from sits_core.errors import InvalidArgument, Unavailable
from sits_protos.v1.topology_pb2 import (
    DEVICE_HEALTH_BAD,
    DEVICE_KIND_GPU,
    Device,
    TopologySnapshot,
)
from sits_scheduling.columns import Flags
from sits_scheduling.fabric import Cluster, Node
from sits_scheduling.gangs import TopologyGangs, groups_of

SIZES: Final = (2, 4, 8)
COLLECTIVE_BYTES: Final = 64 << 20
ALTERNATIVES: Final = 5
HELD_S: Final = 60.0
"""Loading takes a while before an executor is linked; whoever asked and never came lets go."""


class Gang(NamedTuple):
    """Devices of one host in ring order, the weakest link of that ring, and what an all-reduce
    is expected to take."""

    host: str
    devices: tuple[str, ...]
    bottleneck_gbps: float
    collective_us: float


class Chosen(NamedTuple):
    gang: Gang
    alternatives: list[Gang]


@dataclass(frozen=True, slots=True)
class Wanted:
    """`holder` empty = nothing is reserved."""

    size: int
    host: str = ""
    among: frozenset[str] = frozenset()
    collective_bytes: int = COLLECTIVE_BYTES
    holder: str = ""


class Gangs:
    """Chooses, and remembers what it gave to whom.

    A gang goes to nobody else while its holder is linked, or asked within the last minute.
    Weakness: each dispatcher remembers its own. Where several are asked, gangs of different
    executors can overlap: let all executors of a host ask the same one.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._held: dict[str, tuple[tuple[str, ...], float]] = {}

    def __repr__(self) -> str:
        return f"<Gangs {len(self._held)} held>"

    def choose(
        self, wanted: Wanted, snapshots: Iterable[TopologySnapshot], linked: Collection[str],
        now_s: float,
    ) -> Chosen:  # fmt: skip
        """Raises `InvalidArgument` for a size that is none, `Unavailable` when none is free."""
        if wanted.size not in SIZES:
            shown = ", ".join(map(str, SIZES))
            raise InvalidArgument(f"size is {wanted.size}, expected one of {shown}")
        self._let_go(linked, now_s)
        cluster = Cluster(list(_nodes(wanted, snapshots)))
        names = [name for node in cluster.nodes for name in node.devices]
        free = np.array([name not in self._taken(wanted.holder) for name in names], bool)
        found = TopologyGangs(cluster, self._rng).place(
            wanted.size, wanted.collective_bytes, np.zeros(len(names)), free
        )
        if found is None:
            raise Unavailable(_why_none(wanted, len(names), int(free.sum())), reason="NO_GANG")
        chosen = _gang(cluster, found.devices, wanted.collective_bytes)
        if wanted.holder:
            self._held[wanted.holder] = (chosen.devices, now_s + HELD_S)
        return Chosen(chosen, _others(cluster, wanted, free, set(chosen.devices)))

    def _let_go(self, linked: Collection[str], now_s: float) -> None:
        self._held = {
            holder: (devices, until_s)
            for holder, (devices, until_s) in self._held.items()
            if holder in linked or until_s > now_s
        }

    def _taken(self, holder: str) -> set[str]:
        return {name for h, (own, _) in self._held.items() if h != holder for name in own}


def _nodes(wanted: Wanted, snapshots: Iterable[TopologySnapshot]) -> Iterator[Node]:
    """Hosts with their GPUs that may carry work and come into question."""
    for snapshot in sorted(snapshots, key=lambda s: s.host):
        if wanted.host in ("", snapshot.host):
            gpus = [d.id for d in snapshot.devices if _comes_into_question(d, wanted)]
            if gpus:
                yield Node.of_costs(snapshot.host, gpus, _costs(snapshot))


def _comes_into_question(device: Device, wanted: Wanted) -> bool:
    if wanted.among and device.id not in wanted.among:
        return False
    return device.kind == DEVICE_KIND_GPU and device.health != DEVICE_HEALTH_BAD


def _costs(snapshot: TopologySnapshot) -> Mapping[tuple[str, str], float]:
    # `from` is a Python keyword, so the field needs getattr.
    return {(getattr(w, "from"), w.to): w.cost_s_per_mb for w in snapshot.weights}


def _gang(cluster: Cluster, devices: Sequence[int], size_bytes: float) -> Gang:
    number = cluster.node_of(devices[0])
    node, start = cluster.nodes[number], cluster.starts[number]
    return Gang(
        node.host,
        tuple(node.devices[device - start] for device in devices),
        cluster.bottleneck_gbps(devices),
        cluster.all_reduce_us(devices, size_bytes),
    )


def _others(cluster: Cluster, wanted: Wanted, free: Flags, chosen: set[str]) -> list[Gang]:
    """The best of those that were not taken."""
    found: list[Gang] = []
    for node, start in zip(cluster.nodes, cluster.starts, strict=True):
        for group in groups_of(node.gbps, wanted.size):
            devices = [start + member for member in group.members]
            if free[devices].all():
                found.append(_gang(cluster, devices, wanted.collective_bytes))
    others = [gang for gang in found if set(gang.devices) != chosen]
    return sorted(others, key=lambda gang: gang.collective_us)[:ALTERNATIVES]


def _why_none(wanted: Wanted, known: int, free: int) -> str:
    where = f"on host {wanted.host}" if wanted.host else "on one host"
    if not known:
        return f"no GPU is known {where}: is a topology service running there?"
    return (
        f"no gang of {wanted.size} GPUs is free {where}: {known} come into question, {free} of "
        "them are not held by others"
    )
