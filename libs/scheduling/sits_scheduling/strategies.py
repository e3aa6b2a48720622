"""Placement strategies: filter, score, pick, over arrays of candidates."""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from sits_scheduling.candidates import Candidates, Flags, Floats


class Filter(Protocol):
    """Which candidates may be used at all."""

    def __call__(self, candidates: Candidates) -> Flags: ...


class Scorer(Protocol):
    """A number from 0 (worst) to 1 (best) for each candidate."""

    name: str

    def score(self, candidates: Candidates) -> Floats: ...


class Picker(Protocol):
    """One index among those allowed; -1 never: there is at least one."""

    def pick(self, scores: Floats, allowed: Flags) -> int: ...


def has_room(candidates: Candidates) -> Flags:
    """Instances with a free slot, not excluded for this batch."""
    room: Flags = candidates.allowed & (candidates.model_batches < candidates.slots)
    return room


class LeastLoaded:
    """1 for an empty executor, falling with the batches it holds per parallel run.

    Rule: 1 / (1 + batches / parallel), so that the first batch matters most. Weakness:
    batches of all models are taken as equally long.
    """

    name = "load"

    def score(self, candidates: Candidates) -> Floats:
        scores: Floats = 1.0 / (1.0 + candidates.batches / candidates.parallel)
        return scores


class Affinity:
    """How near an instance is to the payload, from measured weights.

    Unknown counts as the mean of what is known, 0.5 when nothing is: affinity is a
    preference, with no signal traffic still flows.
    """

    name = "affinity"

    def score(self, candidates: Candidates) -> Floats:
        known = ~np.isnan(candidates.affinity)
        if not known.any():
            return np.full(len(candidates), 0.5)
        neutral = float(candidates.affinity[known].mean())
        return np.where(known, candidates.affinity, neutral)


class HighestScore:
    """The best score; ties are broken at random, so that equals share the load."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def pick(self, scores: Floats, allowed: Flags) -> int:
        masked = np.where(allowed, scores, -np.inf)
        best = np.flatnonzero(masked >= masked.max() - 1e-9)
        return int(best[self._rng.randrange(len(best))] if len(best) > 1 else best[0])


class InTurn:
    """The next allowed candidate after the last one picked."""

    def __init__(self) -> None:
        self._last = -1

    def pick(self, scores: Floats, allowed: Flags) -> int:
        usable = np.flatnonzero(allowed)
        after = usable[usable > self._last]
        self._last = int(after[0] if len(after) else usable[0])
        return self._last


class Placement(NamedTuple):
    """The decision: position among the candidates, and each scorer's share in the pick."""

    choice: int
    scores: dict[str, float]


class Strategy:
    """Filter, then the weighted sum of scorers, then pick."""

    def __init__(
        self,
        name: str,
        scorers: Sequence[tuple[Scorer, float]],
        picker: Picker,
        keep: Filter = has_room,
    ) -> None:
        self.name = name
        self._scorers, self._picker, self._keep = scorers, picker, keep

    def place(self, candidates: Candidates) -> Placement | None:
        """None when no candidate has room."""
        allowed = self._keep(candidates)
        if not allowed.any():
            return None
        terms = {scorer.name: scorer.score(candidates) * weight for scorer, weight in self._scorers}
        total: Floats = sum(terms.values(), np.zeros(len(candidates)))
        index = self._picker.pick(total, allowed)
        return Placement(index, {name: float(values[index]) for name, values in terms.items()})

    def __repr__(self) -> str:
        return f"<Strategy {self.name}>"


# Load weighs more than nearness: a near instance with two batches waiting loses against
# an empty far one, and wins against a far one that is as busy.
_TOPOLOGY_WEIGHTS = (0.6, 0.4)


def _topo_aware(rng: random.Random) -> Strategy:
    load, affinity = _TOPOLOGY_WEIGHTS
    return Strategy(
        "topo_aware", [(LeastLoaded(), load), (Affinity(), affinity)], HighestScore(rng)
    )


STRATEGIES: dict[str, Callable[[random.Random], Strategy]] = {
    "round_robin": lambda rng: Strategy("round_robin", [], InTurn()),
    "least_loaded": lambda rng: Strategy("least_loaded", [(LeastLoaded(), 1.0)], HighestScore(rng)),
    "topo_aware": _topo_aware,
}
"""Every strategy by name; a factory gets the random source for ties."""
