"""How near two devices are: an ordered enum, a cost in seconds a megabyte, a weight from 0 to 1.

Pure: numbers in, numbers out, nothing of the rest of the package.

cost, seconds to move one megabyte (10^6 bytes):

  self                    0, nothing moves
  NVLink, C2C, measured   1 MB / bandwidth
  otherwise               base + base × `HOP_PENALTY` × hops(kind), base = 1 MB / bandwidth
  unknown NVLink          geometric mean of a usual NVLink and of the path that was seen
  unknown path            as PHB, the middle of the ladder
  degraded                `DEGRADED_FACTOR` × the above

weight = 1 / (1 + cost / `HALF_COST_S`): 1.0 for the device itself, one half at 40 GB/s,
towards 0 with growing cost.

Sources. Bandwidths are NCCL's (src/graph/topo.h: per NVLink by architecture, PCIe GB/s =
width x speed / 80, LOC 5000, NET 12). The order of the kinds is NCCL's path types with
`nvidia-smi topo -m`'s NODE put back between PHB and SYS. `HOP_PENALTY` is fitted to the
all-reduce times that microsoft/vidur recorded at 64 MiB: with GPUs of two NVLink bridge pairs
it takes 11.1x as long as within a pair on A100 (SYS to NVLink in this model: 12.0x) and 5.9x
on H100 (6.2x). The SYS penalty grows with the ACPI distance of the two NUMA nodes, 20 being
Linux' REMOTE_DISTANCE.

Known weaknesses: nominal figures know nothing of a host that bounces peer copies through slow
memory (an A40 host of the same data set reached 4 GB/s where this says 20); measured links
(`measured`) replace them. `DEGRADED_FACTOR` and `HALF_COST_S` are choices, not measurements.
"""

import math
from enum import Enum, IntEnum
from typing import Final


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


MEGABYTE: Final = 1e6
HOP_PENALTY: Final = 0.05
DEGRADED_FACTOR: Final = 2.0
HALF_COST_S: Final = 25e-6
REMOTE_DISTANCE: Final = 20

NVLINK_GBPS: Final = 240.0
"""What an NVLink connection usually carries: 12 links of 20 GB/s."""

SOCKET_GBPS: Final = 16.0
"""Between two CPU sockets; NCCL's table goes from 6 to 40 by vendor and model, AMD is 16."""

DEFAULT_GBPS: Final = {
    LinkKind.NVLINK: NVLINK_GBPS,
    LinkKind.C2C: 450.0,
    LinkKind.NETWORK: 12.0,
}
"""Where nothing better is known; PCIe kinds take `PCIE_GBPS`."""

PCIE_GBPS: Final = 12.0
"""Gen3 x16, which NCCL assumes when a machine does not tell."""

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
    """Seconds to move one megabyte; see the module for the formula. Never negative."""
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


def weight(cost_s: float) -> float:
    """Affinity of a pair whose megabyte costs `cost_s`: 1.0 = same device, towards 0."""
    return 1.0 / (1.0 + cost_s / HALF_COST_S)


def _nominal(kind: LinkKind, bandwidth_gbps: float | None, numa_distance: int | None) -> float:
    base = _transfer(bandwidth_gbps or DEFAULT_GBPS.get(kind, PCIE_GBPS))
    hops: float = _HOPS.get(kind, 0)
    if kind is LinkKind.SYS and numa_distance is not None:
        hops *= numa_distance / REMOTE_DISTANCE
    return base + base * HOP_PENALTY * hops


def _transfer(bandwidth_gbps: float) -> float:
    return MEGABYTE / (bandwidth_gbps * 1e9)
