"""What it costs to move data between two devices, by kind of link and by what is known of it.

The topology service prices what it finds by this rule and publishes it; gangs and the simulator
price links that are given by it.

cost, seconds to move one megabyte (10^6 bytes):

  self                    0, nothing moves
  NVLink, C2C, measured   1 MB / bandwidth
  otherwise               base + base × `HOP_PENALTY` × hops(kind), base = 1 MB / bandwidth
  unknown NVLink          geometric mean of a usual NVLink and of the path that was seen
  unknown path            as PHB, the middle of the ladder
  degraded                `DEGRADED_FACTOR` × the above

Sources. Bandwidths are NCCL's (src/graph/topo.h: per NVLink by architecture, PCIe GB/s =
width x speed / 80, LOC 5000, NET 12). The order of the kinds is NCCL's path types with
`nvidia-smi topo -m`'s NODE put back between PHB and SYS. `HOP_PENALTY` is fitted to the
all-reduce times that microsoft/vidur recorded at 64 MiB: with GPUs of two NVLink bridge pairs
it takes 11.1x as long as within a pair on A100 (SYS to NVLink in this model: 12.0x) and 5.9x
on H100 (6.2x). The SYS penalty grows with the ACPI distance of the two NUMA nodes, 20 being
Linux' REMOTE_DISTANCE.

Known weaknesses: nominal figures know nothing of a host that bounces peer copies through slow
memory (an A40 host of the same data set reached 4 GB/s where this says 20); measured links
replace them. `DEGRADED_FACTOR` is a choice, not a measurement.
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
    """What is known of the fast link of a pair. Numbers are those of sits.v1.LinkKnowledge.

    KNOWN: the kind is the whole truth. ABSENT: it is, and NVLink was looked for and is not
    there. UNKNOWN: the source cannot see NVLink (or the path). DEGRADED: links are lost.
    """

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
    def cost_s_per_mb(self) -> float:
        return cost_s_per_mb(
            self.kind, self.knowledge, self.bandwidth_gbps or None, measured=self.measured
        )

    @property
    def gbps(self) -> float:
        """GB/s that the cost amounts to; infinite for a device itself."""
        cost = self.cost_s_per_mb
        return 1e-3 / cost if cost else math.inf


LATENCY_US: Final = {False: 6.0, True: 20.0}
"""By whether the network is crossed. Measured with 2 KB: 4–8 and 17–24 µs."""

HOP_PENALTY: Final = 0.05
DEGRADED_FACTOR: Final = 2.0
REMOTE_DISTANCE: Final = 20

NVLINK_GBPS: Final = 240.0
"""What an NVLink connection usually carries: 12 links of 20 GB/s (A100); H100 has 18 of 20.6."""

PCIE_GBPS: Final = 12.0
"""Gen3 x16, which NCCL assumes when a machine does not tell."""

_DEFAULT_GBPS: Final = {
    LinkKind.NVLINK: NVLINK_GBPS,
    LinkKind.C2C: 450.0,
    LinkKind.NETWORK: 12.0,
}
"""Where nothing better is known; PCIe kinds take `PCIE_GBPS`."""

_HOPS: Final = {
    LinkKind.PIX: 0,
    LinkKind.PXB: 1,
    LinkKind.PHB: 2,
    LinkKind.NODE: 3,
    LinkKind.SYS: 4,
    LinkKind.NETWORK: 5,
}


def cost_s_per_mb(
    kind: LinkKind,
    knowledge: Knowledge = Knowledge.KNOWN,
    bandwidth_gbps: float | None = None,
    *,
    numa_distance: int | None = None,
    measured: bool = False,
) -> float:
    """Seconds to move one megabyte (D1); see the module for the formula. Never negative."""
    if kind is LinkKind.SELF:
        return 0.0
    if kind is LinkKind.UNSPECIFIED:
        cost = _nominal(LinkKind.PHB, bandwidth_gbps, numa_distance)
    elif measured and bandwidth_gbps:
        cost = _transfer(bandwidth_gbps)
    else:
        cost = _nominal(kind, bandwidth_gbps, numa_distance)
        if knowledge is Knowledge.UNKNOWN and kind > LinkKind.C2C:
            cost = math.sqrt(_transfer(NVLINK_GBPS) * cost)
    return cost * DEGRADED_FACTOR if knowledge is Knowledge.DEGRADED else cost


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
    return link.start_us + size_bytes * link.cost_s_per_mb


def _nominal(kind: LinkKind, bandwidth_gbps: float | None, numa_distance: int | None) -> float:
    base = _transfer(bandwidth_gbps or _DEFAULT_GBPS.get(kind, PCIE_GBPS))
    hops: float = _HOPS.get(kind, 0)
    if kind is LinkKind.SYS and numa_distance is not None:
        hops *= numa_distance / REMOTE_DISTANCE
    return base + base * HOP_PENALTY * hops


def _transfer(bandwidth_gbps: float) -> float:
    return 1e-3 / bandwidth_gbps
