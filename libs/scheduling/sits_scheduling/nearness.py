"""How near every executor is to where a payload lies, kept for each place that sends."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sits_scheduling.affinity import (
    LINK_LATENCY_NS,
    NETWORK,
    SAME_HOST_UNKNOWN,
    AffinityMap,
    Place,
    Way,
    way_of,
)
from sits_scheduling.columns import Floats, Ints

_NO_HOST = -1
_LEAST_US_PER_BYTE = 1e-9
"""Another place is never as near as the same one."""


@dataclass(frozen=True, slots=True)
class Executor:
    """Who it is and where it runs; `device` as topology names it."""

    id: str
    host: str = ""
    device: str = ""


class Ways(NamedTuple):
    """`Way`s to several positions, as arrays."""

    latency_ns: Floats
    ns_per_byte: Floats


class _Own(NamedTuple):
    """Of one place: positions on its host, the ways to them, and the way that stands for
    an unknown one: the mean of those known, affinity being a preference that never keeps
    work from flowing."""

    positions: Ints
    ways: Ways
    unknown: Way


class Nearness:
    """Ways from a place to positions of `executors`, a list that its owner keeps up to date.

    Only the executors on the place's own host are looked up, all others are other hosts,
    so that a new place costs what its host's executors cost, not what all do.
    """

    def __init__(self, executors: Sequence[Executor | None]) -> None:
        self._executors = executors
        self._map = AffinityMap()
        self._hosts: dict[str, int] = {}
        self._codes: Ints | None = None
        self._whole: dict[Place, Ways] = {}
        self._own: dict[Place, _Own] = {}
        self._matrix: Floats | None = None

    def set_map(self, weights: AffinityMap) -> None:
        self._map, self._matrix = weights, None
        self._whole.clear()
        self._own.clear()

    def changed(self) -> None:
        """Executors came or went."""
        self._codes = self._matrix = None
        self._whole.clear()
        self._own.clear()

    def whole(self, place: Place) -> Ways:
        """To every position."""
        known = self._whole.get(place)
        if known is None:
            known = self._others(place, self._host_codes())
            own = self._own_of(place)
            known.latency_ns[own.positions] = own.ways.latency_ns
            known.ns_per_byte[own.positions] = own.ways.ns_per_byte
            self._whole[place] = known
        return known

    def us_per_byte(self) -> Floats:
        """From every position to every other, 0 to itself; where nobody is, nowhere is near."""
        if self._matrix is None:
            ways = [self._from(position) for position in range(len(self._executors))]
            self._matrix = np.array(ways) if ways else np.zeros((0, 0))
            np.fill_diagonal(self._matrix, 0.0)
        return self._matrix

    def some(self, place: Place, drawn: Ints) -> tuple[Ints, Ways]:
        """All positions on the place's host and those `drawn` that are elsewhere."""
        own = self._own_of(place)
        codes = self._host_codes()[drawn]
        if len(own.positions):
            other = codes != self._hosts[place.host]
            drawn, codes = drawn[other], codes[other]
        rest = self._others(place, codes)
        ways = Ways(
            np.concatenate((own.ways.latency_ns, rest.latency_ns)),
            np.concatenate((own.ways.ns_per_byte, rest.ns_per_byte)),
        )
        return np.concatenate((own.positions, drawn)), ways

    def _from(self, position: int) -> Floats:
        executor = self._executors[position]
        if executor is None:
            return np.full(len(self._executors), NETWORK.ns_per_byte * 1e-3)
        place = Place(executor.host, made_on=executor.device)
        return np.maximum(self.whole(place).ns_per_byte * 1e-3, _LEAST_US_PER_BYTE)

    def _own_of(self, place: Place) -> _Own:
        known = self._own.get(place)
        if known is None:
            codes = self._host_codes()
            positions = np.flatnonzero(codes == self._hosts.get(place.host, len(self._hosts)))
            weights = [self.weight(place, int(position)) for position in positions]
            known = self._own[place] = _own(positions, weights)
        return known

    def _others(self, place: Place, codes: Ints) -> Ways:
        unknown = self._own_of(place).unknown
        if not place.host:
            return Ways(np.full(len(codes), unknown[0]), np.full(len(codes), unknown[1]))
        nowhere = codes == _NO_HOST
        return Ways(
            np.where(nowhere, unknown.latency_ns, NETWORK.latency_ns),
            np.where(nowhere, unknown.ns_per_byte, NETWORK.ns_per_byte),
        )

    def weight(self, place: Place, position: int) -> float:
        """As published; NaN when unknown."""
        executor = self._executors[position]
        if executor is None:
            return SAME_HOST_UNKNOWN
        return self._map.affinity(place, executor.host, executor.device)

    def _host_codes(self) -> Ints:
        """A number for each position's host."""
        if self._codes is None:
            self._hosts = {}
            codes = [
                self._hosts.setdefault(e.host, len(self._hosts)) if e and e.host else _NO_HOST
                for e in self._executors
            ]
            self._codes = np.array(codes, dtype=np.intp)
        return self._codes


def _own(positions: Ints, weights: Sequence[float]) -> _Own:
    known = [way_of(weight) for weight in weights if not math.isnan(weight)]
    count = max(1, len(known))
    mean = Way(sum(w.latency_ns for w in known) / count, sum(w.ns_per_byte for w in known) / count)
    unknown = mean if known else Way(LINK_LATENCY_NS, 0.0)
    ways = [unknown if math.isnan(weight) else way_of(weight) for weight in weights]
    arrays = Ways(np.array([w.latency_ns for w in ways]), np.array([w.ns_per_byte for w in ways]))
    return _Own(positions, arrays, unknown)
