"""Every strategy by name. A strategy names two things: which waiting work goes first, and where."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from sits_scheduling.candidates import Candidates
from sits_scheduling.orders import ORDERS, Order
from sits_scheduling.placements import (
    AnyOf,
    Decision,
    HighestScore,
    InTurn,
    LeastLoaded,
    Placement,
    Scored,
    Service,
    Transfer,
    Wait,
)

Rng = random.Random


@dataclass(frozen=True, slots=True)
class Strategy:
    """An order for what waits and a placement for what goes.

    The eight names of D3 answer one of the two questions each, so a name fixes its own
    half and the other half is the best there is: a placement goes with `priority`, an
    order with `topo_aware`. `"fifo+random"` names both.
    """

    name: str
    order: Order
    placement: Placement

    def place(self, candidates: Candidates) -> Decision | None:
        """None when no candidate has room."""
        return self.placement.place(candidates)

    def __repr__(self) -> str:
        return f"<Strategy {self.name}: {self.order.name}, {self.placement.name}>"


def random_choice(rng: Rng) -> Placement:
    """Any executor with room. The baseline; weakness: with n batches on n executors, the
    fullest holds about log n / log log n of them."""
    return Scored("random", [], AnyOf(rng))


def round_robin(_rng: Rng) -> Placement:
    """One after the other. Weakness: blind to long batches and slow executors."""
    return Scored("round_robin", [], InTurn(), whole=True)


def least_loaded(rng: Rng) -> Placement:
    """Fewest batches a parallel run (join the shortest queue). Weakness: counts, not times."""
    return Scored("least_loaded", [LeastLoaded()], HighestScore(rng))


def power_of_two(rng: Rng) -> Placement:
    """The less loaded of two random ones (Mitzenmacher 2001). Weakness: near optimal only
    while the two are alike; made for stale views, which a dispatcher's own table is not."""
    return Scored("power_of_two", [LeastLoaded()], AnyOf(rng, draws=2))


def topo_aware(rng: Rng) -> Placement:
    """Earliest finish: transfer over measured links + predicted wait + predicted run time.

    The three are microseconds and add up to a prediction, so that no weights are needed:
    a near executor wins while the way is what differs, and loses to a far one as soon as
    its queue costs more than the way. A step of a pipeline also sees what the later ones
    cost from there. Weakness: as good as the predictions; a batch in
    the queue of another dispatcher is not seen.
    """
    best = HighestScore(rng)
    return Scored("topo_aware", [Transfer(), Wait(), Service()], best, looks_ahead=True)


PLACEMENTS: Final[dict[str, Callable[[Rng], Placement]]] = {
    "random": random_choice,
    "round_robin": round_robin,
    "least_loaded": least_loaded,
    "power_of_two": power_of_two,
    "topo_aware": topo_aware,
}

DEFAULT_ORDER: Final = "priority"
DEFAULT_PLACEMENT: Final = "topo_aware"

Factory = Callable[[Rng], Strategy]
"""Makes a strategy with its own state; the random source is for ties and samples."""


def _paired(name: str, order: str, placement: str) -> Factory:
    return lambda rng: Strategy(name, ORDERS[order](), PLACEMENTS[placement](rng))


STRATEGIES: Final[Mapping[str, Factory]] = {
    **{name: _paired(name, DEFAULT_ORDER, name) for name in PLACEMENTS},
    **{name: _paired(name, name, DEFAULT_PLACEMENT) for name in ORDERS},
}
"""The eight strategies."""


def factory(name: str, custom: Mapping[str, Factory] | None = None) -> Factory | None:
    """The factory for one of `STRATEGIES`, of `custom`, or for `"order+placement"`; None for
    an unknown name."""
    if (own := (custom or {}).get(name) or STRATEGIES.get(name)) is not None:
        return own
    order, plus, placement = name.partition("+")
    if plus and order in ORDERS and placement in PLACEMENTS:
        return _paired(name, order, placement)
    return None
