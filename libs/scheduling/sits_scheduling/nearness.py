"""How near every executor is to where a payload lies, kept for each place that sends."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sits_scheduling.affinity import OTHER_HOST, SAME_HOST_UNKNOWN, AffinityMap, Place
from sits_scheduling.columns import Floats, Ints

_NO_HOST = -1


@dataclass(frozen=True, slots=True)
class Executor:
    """Who it is and where it runs; `device` as topology names it."""

    id: str
    host: str = ""
    device: str = ""


class Nearness:
    """Weights from a place to positions of `executors`, a list that its owner keeps up to date.

    Only the executors on the place's own host are looked up, all others are other hosts,
    so that a new place costs what its host's executors cost, not what all do.
    """

    def __init__(self, executors: Sequence[Executor | None]) -> None:
        self._executors = executors
        self._map = AffinityMap()
        self._hosts: dict[str, int] = {}
        self._codes: Ints | None = None
        self._whole: dict[Place, Floats] = {}
        self._own: dict[Place, tuple[Ints, Floats]] = {}

    def set_map(self, weights: AffinityMap) -> None:
        self._map = weights
        self._whole.clear()
        self._own.clear()

    def changed(self) -> None:
        """Executors came or went."""
        self._codes = None
        self._whole.clear()
        self._own.clear()

    def whole(self, place: Place) -> Floats:
        """0..1 for every position, NaN where nothing is known."""
        known = self._whole.get(place)
        if known is None:
            known = self._others(place, self._host_codes())
            positions, weights = self.own(place)
            known[positions] = weights
            self._whole[place] = known
        return known

    def own(self, place: Place) -> tuple[Ints, Floats]:
        """Positions on the place's host, and their weights."""
        known = self._own.get(place)
        if known is None:
            codes = self._host_codes()
            positions = np.flatnonzero(codes == self._hosts.get(place.host, len(self._hosts)))
            weights = [self._weight(place, int(position)) for position in positions]
            known = self._own[place] = positions, np.array(weights, dtype=np.float64)
        return known

    def elsewhere(self, place: Place, positions: Ints) -> tuple[Ints, Floats]:
        """Those of `positions` that are not on the place's host, and their weights."""
        codes = self._host_codes()[positions]
        if place.host in self._hosts:
            other = codes != self._hosts[place.host]
            positions, codes = positions[other], codes[other]
        return positions, self._others(place, codes)

    def _others(self, place: Place, codes: Ints) -> Floats:
        if not place.host:
            return np.full(len(codes), SAME_HOST_UNKNOWN)
        return np.where(codes == _NO_HOST, SAME_HOST_UNKNOWN, OTHER_HOST)

    def _weight(self, place: Place, position: int) -> float:
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
