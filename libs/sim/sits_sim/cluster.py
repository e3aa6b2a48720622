"""Clusters built from real hosts: nodes, GPUs, how they are joined, and what a collective costs.

The shapes are those of data/nodes.json. The weights are what the topology service publishes
for such a host; the times are measured ones, which the weights do not know.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

from sits_sim import link_times

Weights = Mapping[tuple[str, str], float]


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of host. `bridges`: pairs of GPUs that share NVLink where there is no switch.
    `table`: whose measured times hold for its network and switch."""

    name: str
    gpus: Mapping[str, int | None]
    cpus: tuple[str, ...]
    weights: Weights
    costs_s_per_mb: Weights
    kinds: Mapping[tuple[str, str], str]

    @property
    def table(self) -> str:
        return link_times.H100 if self.name == "h100_nvswitch" else link_times.A100

    @property
    def switched(self) -> bool:
        return self.name.endswith("_nvswitch")

    def bridged(self, one: str, other: str) -> bool:
        return self.kinds[one, other] == "NVLINK"


@dataclass(frozen=True, slots=True)
class Gpu:
    """`index` counts over the whole cluster."""

    index: int
    id: str
    host: str
    device: str
    numa_node: int
    shape: Shape


@dataclass(frozen=True, slots=True)
class Cluster:
    gpus: tuple[Gpu, ...]
    hosts: Mapping[str, Shape]

    def __repr__(self) -> str:
        kinds = Counter(shape.name for shape in self.hosts.values())
        return f"<Cluster {len(self.gpus)} GPUs: {', '.join(f'{n} {k}' for k, n in kinds.items())}>"

    def all_reduce_us(self, members: Sequence[Gpu], size_bytes: float) -> float:
        """Undisturbed time of an all-reduce of `size_bytes` over `members`."""
        if len(members) < 2:
            return 0.0
        per_host = Counter(gpu.host for gpu in members)
        if len(per_host) > 1:
            return self._over_network(members, min(per_host.values()), size_bytes)
        shape = members[0].shape
        if shape.switched:
            return link_times.switched_us(shape.table, len(members), size_bytes)
        if len(members) == 2 and shape.bridged(members[0].device, members[1].device):
            return link_times.bridged_us(size_bytes)
        return link_times.pcie_us(len(members), size_bytes)

    def _over_network(self, members: Sequence[Gpu], per_node: int, size_bytes: float) -> float:
        slowest = {gpu.shape.table for gpu in members}
        table = link_times.A100 if link_times.A100 in slowest else link_times.H100
        return link_times.network_us(table, len(members), per_node, size_bytes)


GPUS_PER_HOST: Final = 8
_MIX: Final = {"h100_nvswitch": 0.5, "a100_nvswitch": 0.25, "pcie": 0.125, "h100_bridges": 0.125}


def mixed(gpus: int) -> Cluster:
    """Half NVSwitch hosts of H100, a quarter of A100, the rest PCIe with and without bridges.
    What does not divide evenly becomes hosts with bridges. `gpus` in eights."""
    hosts = gpus // GPUS_PER_HOST
    counts = {name: int(hosts * share) for name, share in _MIX.items()}
    counts["h100_bridges"] += hosts - sum(counts.values())
    return build(counts)


def build(counts: Mapping[str, int]) -> Cluster:
    """A cluster with so many hosts of each shape, the shapes one after the other."""
    hosts: dict[str, Shape] = {}
    gpus: list[Gpu] = []
    for name, count in counts.items():
        for _ in range(count):
            host = f"node-{len(hosts):03d}"
            hosts[host] = shape = shapes()[name]
            for device, numa in shape.gpus.items():
                numa_node = -1 if numa is None else numa
                gpus.append(Gpu(len(gpus), f"{host}/{device}", host, device, numa_node, shape))
    return Cluster(tuple(gpus), hosts)


@cache
def shapes() -> dict[str, Shape]:
    text = (resources.files("sits_sim") / "data" / "nodes.json").read_text()
    return {name: _shape(name, raw) for name, raw in json.loads(text).items()}


def _shape(name: str, raw: Mapping[str, object]) -> Shape:
    gpus, cpus, links = raw["gpus"], raw["cpus"], raw["links"]
    assert isinstance(gpus, dict)  # noqa: S101 (our own file)
    assert isinstance(cpus, list)  # noqa: S101
    assert isinstance(links, list)  # noqa: S101
    own = {(device, device): 1.0 for device in [*gpus, *cpus]}
    return Shape(
        name,
        gpus,
        tuple(cpus),
        own | {(a, b): weight for a, b, _, _, weight in links},
        {(a, b): cost for a, b, _, cost, _ in links},
        {(a, b): kind for a, b, kind, _, _ in links},
    )
