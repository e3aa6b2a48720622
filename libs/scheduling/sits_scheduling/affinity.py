"""Where data lies and how near each device is to it, from published weights."""

from collections.abc import Mapping
from typing import NamedTuple

SAME_HOST_UNKNOWN = float("nan")
OTHER_HOST = 0.0
"""Crossing hosts costs 10 to 30 times a link inside one (measured collectives, A100 and
H100 nodes), so that it is the floor of the scale whatever the devices."""


class Place(NamedTuple):
    """Where a payload lies. `numa_node` -1 = unknown."""

    host: str
    numa_node: int = -1

    @property
    def device(self) -> str:
        return f"cpu:{self.numa_node}" if self.numa_node >= 0 else ""


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
        known = self._weights.get(host)
        if known is None or not place.device or not device:
            return SAME_HOST_UNKNOWN
        return known.get((place.device, device), SAME_HOST_UNKNOWN)

    def __repr__(self) -> str:
        return f"<AffinityMap {len(self._weights)} hosts>"
