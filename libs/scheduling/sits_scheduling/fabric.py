"""The devices of a node or of a cluster, how wide and how far apart they are, and what a
collective over some of them costs."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from sits_scheduling.columns import Floats
from sits_scheduling.links import LATENCY_US, Link, LinkKind
from sits_scheduling.rings import ring_gbps

NVLINK_EFFICIENCY: Final = 0.7
"""Of the nominal bandwidth a ring reaches 0.65 to 0.74 over NVLink (A100 and H100, 64 MiB);
over PCIe and the network it reaches what they carry."""
_NVLINK_FROM_GBPS: Final = 100.0
_LOCAL_GBPS: Final = 1e5
"""Between two names of one device; never the bottleneck."""

NETWORK: Final = Link(LinkKind.NETWORK)


class Node:
    """One host: its devices and GB/s between them, symmetric; the diagonal means nothing."""

    def __init__(self, host: str, devices: Sequence[str], gbps: Floats) -> None:
        self.host, self.devices, self.gbps = host, tuple(devices), gbps
        np.fill_diagonal(self.gbps, 0.0)

    @classmethod
    def of_costs(
        cls, host: str, devices: Sequence[str], costs: Mapping[tuple[str, str], float]
    ) -> "Node":
        """From seconds a megabyte, as topology publishes them; of two directions the slower
        one counts, an unknown pair is an unknown path."""
        unknown = Link(LinkKind.UNSPECIFIED).cost_s_per_mb
        gbps = np.empty((len(devices), len(devices)))
        for i, one in enumerate(devices):
            for j, other in enumerate(devices):
                there, back = costs.get((one, other), unknown), costs.get((other, one), unknown)
                gbps[i, j] = 1e-3 / max(there, back) if there and back else _LOCAL_GBPS
        return cls(host, devices, gbps)

    @classmethod
    def of_links(
        cls, host: str, devices: Sequence[str], links: Mapping[tuple[str, str], Link]
    ) -> "Node":
        return cls.of_costs(host, devices, {pair: li.cost_s_per_mb for pair, li in links.items()})

    def __len__(self) -> int:
        return len(self.devices)

    def __repr__(self) -> str:
        return f"<Node {self.host} {len(self)} devices>"


class Cluster:
    """Nodes on a network. Devices are numbered through, node after node.

    `network` is one adapter's link. `sharing` devices share an adapter, and a node has
    `adapters` of them, so that a collective with k devices a node uses k / `sharing`.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        network: Link = NETWORK,
        adapters: int = 4,
        sharing: int = 2,
    ) -> None:
        self.nodes, self.network = tuple(nodes), network
        self._adapters, self._sharing = adapters, sharing
        starts = np.cumsum([0, *(len(node) for node in nodes)])
        self.starts = [int(start) for start in starts[:-1]]
        self._node_of = np.repeat(np.arange(len(nodes)), [len(node) for node in nodes])

    def __len__(self) -> int:
        return len(self._node_of)

    def __repr__(self) -> str:
        return f"<Cluster {len(self.nodes)} nodes, {len(self)} devices>"

    def node_of(self, device: int) -> int:
        return int(self._node_of[device])

    def bottleneck_gbps(self, devices: Sequence[int]) -> float:
        """Of the best ring over these devices, which may be on several nodes."""
        parts = self._parts(devices)
        inside = [self._inside(node, members) for node, members in parts.items()]
        if len(parts) == 1:
            return inside[0]
        fewest = min(len(members) for members in parts.values())
        in_use = min(self._adapters, max(1, fewest // self._sharing))
        return min(*inside, self.network.gbps * in_use)

    def all_reduce_us(self, devices: Sequence[int], size_bytes: float) -> float:
        """Time of an all-reduce of `size_bytes`.

        Ring: each link carries 2 (n − 1) / n of the size (Patarasuk and Yuan 2009); start-up
        counts 2 log2 n steps of the slowest link, since small sizes go by trees. Weakness:
        NCCL changes its algorithm with the size, which moves single sizes by a factor of
        two; the order of groups at 64 MiB and whether a boundary is crossed come out right.
        """
        count = len(devices)
        if count < 2:
            return 0.0
        crossing = len(self._parts(devices)) > 1
        start_us = 2 * math.log2(count) * (self.network.start_us if crossing else LATENCY_US[False])
        gbps = effective_gbps(self.bottleneck_gbps(devices))
        return start_us + 2 * (count - 1) / count * size_bytes * 1e-3 / gbps

    def _inside(self, node: int, members: list[int]) -> float:
        return ring_gbps(self.nodes[node].gbps, members) if len(members) > 1 else _LOCAL_GBPS

    def _parts(self, devices: Sequence[int]) -> dict[int, list[int]]:
        """Local device numbers by node."""
        parts: dict[int, list[int]] = {}
        for device in devices:
            node = self.node_of(device)
            parts.setdefault(node, []).append(device - self.starts[node])
        return parts


def effective_gbps(gbps: float) -> float:
    """What a ring gets of a bottleneck."""
    return gbps * NVLINK_EFFICIENCY if gbps >= _NVLINK_FROM_GBPS else gbps
