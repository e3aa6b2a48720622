"""Where data lies and how near each device is to it, from published weights."""

from collections.abc import Mapping
from typing import Final, NamedTuple

SAME_HOST_UNKNOWN = float("nan")
SAME_DEVICE = 1.0
OTHER_HOST = 0.0
"""Crossing hosts costs 10 to 30 times a link inside one (measured collectives, A100 and
H100 nodes), so that it is the floor of the scale whatever the devices."""

HALF_COST_S: Final = 25e-6
"""Topology's scale: weight = 1 / (1 + seconds a megabyte / this)."""


class Way(NamedTuple):
    """What moving a payload costs: a start and a rate, in nanoseconds."""

    latency_ns: float
    ns_per_byte: float


NETWORK: Final = Way(20_000.0, 0.13)
"""Between nodes, measured: 17 to 24 µs for 2 KB, 7.7 GB/s on A100 hosts (35 on H100; the
careful figure is taken)."""
LINK_LATENCY_NS: Final = 6_000.0
"""Inside a node, measured: 5 to 8 µs for 2 KB."""


def way_of(weight: float) -> Way:
    """What a published weight says about moving bytes."""
    if weight <= OTHER_HOST:
        return NETWORK
    return Way(LINK_LATENCY_NS, (1.0 / weight - 1.0) * HALF_COST_S * 1e3)


class Place(NamedTuple):
    """Where a payload lies. `numa_node` -1 = unknown. `made_on`: the device that made it, which
    then counts as its place."""

    host: str
    numa_node: int = -1
    made_on: str = ""

    @property
    def device(self) -> str:
        return self.made_on or (f"cpu:{self.numa_node}" if self.numa_node >= 0 else "")


class AffinityMap:
    """Weights between devices of each host, 1 = the device itself.

    Immutable: a new snapshot makes a new map, so that one decision sees one state.
    """

    def __init__(
        self, weights: Mapping[str, Mapping[tuple[str, str], float]] | None = None
    ) -> None:
        self._weights = weights or {}

    def affinity(self, place: Place, host: str, device: str) -> float:
        """0..1, NaN when unknown. Unknown hosts are unknown, never equal."""
        if not place.host or not host:
            return SAME_HOST_UNKNOWN
        if place.host != host:
            return OTHER_HOST
        if place.made_on and place.made_on == device:
            return SAME_DEVICE
        known = self._weights.get(host)
        if known is None or not place.device or not device:
            return SAME_HOST_UNKNOWN
        return known.get((place.device, device), SAME_HOST_UNKNOWN)

    def __repr__(self) -> str:
        return f"<AffinityMap {len(self._weights)} hosts>"
