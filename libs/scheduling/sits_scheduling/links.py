"""What it costs to move data between two devices, by kind of link and by what is known of it.

The topology service applies the same rule to what it finds and publishes the costs; here it
serves links that are given, in a cluster description or a simulation. A test keeps the two
equal.
"""

import math
from enum import Enum, IntEnum
from typing import Final, NamedTuple


class LinkKind(IntEnum):
    """Best path between two devices, nearest first. Numbers are those of sits.v1.LinkKind."""

    UNSPECIFIED = 0
    SELF = 1
    NVLINK = 2
    C2C = 3
    PIX = 4
    PXB = 5
    PHB = 6
    NODE = 7
    SYS = 8
    NETWORK = 9


class Knowledge(Enum):
    """KNOWN: the kind is the whole truth. ABSENT: NVLink was looked for and is not there.
    UNKNOWN: the source cannot see NVLink, or the path. DEGRADED: links are lost. Numbers are
    those of sits.v1.LinkKnowledge."""

    KNOWN = 1
    ABSENT = 2
    UNKNOWN = 3
    DEGRADED = 4


class Link(NamedTuple):
    """0 = not known. `measured`: the bandwidth is from a timed copy and is believed as it is."""

    kind: LinkKind
    bandwidth_gbps: float = 0.0
    latency_us: float = 0.0
    knowledge: Knowledge = Knowledge.KNOWN
    measured: bool = False

    @property
    def start_us(self) -> float:
        return self.latency_us or LATENCY_US[self.kind is LinkKind.NETWORK]

    @property
    def gbps(self) -> float:
        """GB/s that a cost of `cost_s_per_mb` amounts to; infinite for a device itself."""
        cost = cost_s_per_mb(self)
        return 1e-3 / cost if cost else math.inf


LATENCY_US: Final = {False: 6.0, True: 20.0}
"""By whether the network is crossed. Measured with 2 KB: 4–8 and 17–24 µs."""

NVLINK_GBPS: Final = 240.0
"""12 links of 20 GB/s (NCCL's figure for A100); H100 has 18 of 20.6."""
PCIE_GBPS: Final = 12.0
"""Gen3 x16, which NCCL assumes when a machine does not tell."""
_DEFAULT_GBPS: Final = {
    LinkKind.NVLINK: NVLINK_GBPS,
    LinkKind.C2C: 450.0,
    LinkKind.NETWORK: 12.0,
}
_HOPS: Final = {
    LinkKind.PIX: 0,
    LinkKind.PXB: 1,
    LinkKind.PHB: 2,
    LinkKind.NODE: 3,
    LinkKind.SYS: 4,
    LinkKind.NETWORK: 5,
}
_HOP_PENALTY: Final = 0.05
_DEGRADED_FACTOR: Final = 2.0


def cost_s_per_mb(link: Link) -> float:
    """Seconds to move one megabyte (D1).

    NVLink, C2C and whatever was measured: 1 / bandwidth. Otherwise a base, 1 / bandwidth,
    plus 5 % of it for each PCIe hop. What cannot be seen lies between: unknown NVLink is
    the geometric mean of a usual NVLink and of the path that was seen, an unknown path is
    a host bridge. Degraded costs twice that. Weakness: nominal figures know nothing of a
    host that bounces peer copies through slow memory; measured links replace them.
    """
    kind, gbps = link.kind, link.bandwidth_gbps
    if kind is LinkKind.SELF:
        return 0.0
    if kind is LinkKind.UNSPECIFIED:
        cost = _nominal(LinkKind.PHB, gbps)
    elif link.measured and gbps:
        cost = 1e-3 / gbps
    else:
        cost = _nominal(kind, gbps)
        if link.knowledge is Knowledge.UNKNOWN and kind > LinkKind.C2C:
            cost = math.sqrt(cost * 1e-3 / NVLINK_GBPS)
    return cost * _DEGRADED_FACTOR if link.knowledge is Knowledge.DEGRADED else cost


def switched(one_lanes: int, other_lanes: int, gbps_per_lane: float, full_lanes: int = 0) -> Link:
    """Two devices on one NVSwitch: the smaller of the two link counts carries the pair.

    Fewer than `full_lanes` (0 = not known) means that links are lost; the lower bandwidth
    says it already, so that it is a known link and not a degraded one.
    """
    lanes = min(one_lanes, other_lanes)
    if lanes == 0:
        knowledge = Knowledge.DEGRADED if full_lanes else Knowledge.ABSENT
        return Link(LinkKind.PHB, knowledge=knowledge)
    return Link(LinkKind.NVLINK, lanes * gbps_per_lane)


def transfer_us(link: Link, size_bytes: float) -> float:
    """Time of one message: for a few KB the start decides, for megabytes the bandwidth."""
    if link.kind is LinkKind.SELF:
        return 0.0
    return link.start_us + size_bytes * cost_s_per_mb(link)


def _nominal(kind: LinkKind, bandwidth_gbps: float) -> float:
    base = 1e-3 / (bandwidth_gbps or _DEFAULT_GBPS.get(kind, PCIE_GBPS))
    return base + base * _HOP_PENALTY * _HOPS.get(kind, 0)
