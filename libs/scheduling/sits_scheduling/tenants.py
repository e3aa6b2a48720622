"""Who shares the mesh, with which weight, and whose turn it is."""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, Protocol, TypeVar

from sits_scheduling.quotas import UNLIMITED, Quota

PENALTY_PER_LEVEL: Final = 0.15
LEAST_FACTOR: Final = 0.1
"""A priority level never takes more than nine tenths of a tenant's weight."""
NS_PER_LEVEL: Final = 250_000_000
"""Waiting this long makes up for one priority level."""


class Tier(Enum):
    """Classes of tenants; the value is the weight."""

    GOLD = 3
    SILVER = 2
    BRONZE = 1


@dataclass(frozen=True, slots=True)
class Tenant:
    name: str
    tier: Tier = Tier.BRONZE
    quota: Quota = UNLIMITED

    @property
    def weight(self) -> float:
        return float(self.tier.value)


OTHER: Final = Tenant("other")


class Tenants:
    """The configured tenants. Unknown names share one flow, `default`, so that inventing
    names wins nothing and the number of flows is bounded."""

    def __init__(self, known: Iterable[Tenant] = (), default: Tenant = OTHER) -> None:
        self._known = {tenant.name: tenant for tenant in known}
        self.default = default

    def of(self, name: str) -> Tenant:
        return self._known.get(name, self.default)

    def all(self) -> list[Tenant]:
        return [*self._known.values(), self.default]

    def __repr__(self) -> str:
        return f"<Tenants {len(self._known)} + {self.default.name}>"


def priority_factor(level: float) -> float:
    """What a priority level leaves of a weight: 1 − 0.15 × level, at least a tenth."""
    return max(LEAST_FACTOR, 1.0 - PENALTY_PER_LEVEL * level)


def charge(cost: float, level: int, waited_ns: int) -> float:
    """What serving a piece takes from its tenant's deficit.

    Cost over factor instead of weight times factor: a tenant whose work is all at level p
    gets weight × factor(p), and spreading work over levels gains no share. Waiting wears
    the penalty off (aging), never the weight: under overload all queues are old, and
    weights that grew with age would end up equal.
    """
    aged = max(0.0, level - max(0, waited_ns) / NS_PER_LEVEL) if level else 0.0
    return cost / priority_factor(aged)


class Flow(Protocol):
    """One tenant's waiting work."""

    weight: float
    deficit: float

    def head_charge(self, now_ns: int) -> float:
        """The charge of what it would serve next. It never grows while the head waits."""
        ...


F = TypeVar("F", bound=Flow)


class DeficitRing(Generic[F]):
    """Weighted deficit round robin (Shreedhar and Varghese 1995) over flows that have work.

    Rule: flows take turns; a turn adds `quantum` × weight to the flow's deficit, and it
    serves while the deficit covers the next piece's charge. A flow without work leaves and
    its deficit is forgotten. With all flows busy each gets its weight's share of the
    charges, whatever the sizes, to within one turn and one piece.

    Starvation bound. Let c be the largest charge, Q_j = quantum × weight of flow j, and B
    the charges of flow i up to and including a given piece. Before that piece is served,
    all flows together are served at most

        W = Σ over j≠i of (⌈B / Q_i⌉ × Q_j + c)  +  (B − its own charge)

    in units of cost (a charge is never less than its cost), hence on a mesh that serves R
    units a second it waits at most W / R. Proof: ⌈B / Q_i⌉ turns of i suffice, between two
    of them every other flow has one turn at most, and a flow's deficit is below c after it.

    Weakness: fair over whole turns only. A turn lasts Σ Q_j / R, so that `quantum` should
    be about the largest single cost: less only costs steps (empty rounds are skipped at
    once), more makes turns long.
    """

    def __init__(self, quantum: float) -> None:
        self.quantum = quantum
        self.largest = 0.0
        self._largest_cost, self._lowest_level = 0.0, 0
        self._ring: deque[F] = deque()
        self._in_turn = False

    def __len__(self) -> int:
        return len(self._ring)

    def expect(self, cost: float, level: int) -> None:
        """A piece came. The largest cost at the lowest level is the c of the bound."""
        if cost > self._largest_cost or level > self._lowest_level:
            self._largest_cost = max(self._largest_cost, cost)
            self._lowest_level = max(self._lowest_level, level)
            self.largest = charge(self._largest_cost, self._lowest_level, 0)

    def clear(self) -> None:
        """All flows leave."""
        self._ring.clear()
        self._in_turn = False

    def join(self, flow: F) -> None:
        flow.deficit = 0.0
        self._ring.append(flow)

    def leave(self, flow: F) -> None:
        if self._ring[0] is flow:
            self._in_turn = False
        self._ring.remove(flow)

    def next(self, now_ns: int) -> F | None:
        """Whose turn it is. The same again until it is charged, leaves or another call's
        time changes its head."""
        ring = self._ring
        if len(ring) <= 1:
            return ring[0] if ring else None
        while True:
            for _ in range(len(ring)):
                flow = ring[0]
                if not self._in_turn:
                    flow.deficit += self.quantum * flow.weight
                    self._in_turn = True
                if flow.deficit >= flow.head_charge(now_ns):
                    return flow
                ring.rotate(-1)
                self._in_turn = False
            self._skip_empty_rounds(now_ns)

    def charge(self, flow: F, amount: float) -> None:
        """`flow` was served. One that is alone need not be charged."""
        flow.deficit -= amount

    def bound(self, flow: F, charges: float, own: float, flows: Iterable[Flow]) -> float:
        """W of the class docstring, `charges` being B and `flows` all that may have work."""
        turns = math.ceil(charges / (self.quantum * flow.weight))
        others = sum(
            turns * self.quantum * other.weight + self.largest
            for other in flows
            if other is not flow
        )
        return others + charges - own

    def _skip_empty_rounds(self, now_ns: int) -> None:
        """Give every flow the rounds in which none of them could serve."""
        missing = (
            (flow.head_charge(now_ns) - flow.deficit) / (self.quantum * flow.weight)
            for flow in self._ring
        )
        rounds = math.ceil(min(missing)) - 1
        for flow in self._ring:
            flow.deficit += max(0, rounds) * self.quantum * flow.weight
