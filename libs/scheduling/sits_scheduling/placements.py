"""Where a batch runs: filter, score, pick, over arrays of candidates."""

import random
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np

from sits_scheduling.candidates import UNKNOWN_COST_NS, Candidates, Flags, Floats

NOMINAL_BYTES: Final = 65_536
"""Taken where the size of a payload is not known, so that near still beats far."""


class Decision(NamedTuple):
    """`choice`: position in the table. `scores`: each term's part in the pick. The rest is
    the whole comparison, for explanations: arrays over `candidates`, more is better;
    `allowed` tells those with room."""

    choice: int
    scores: dict[str, float]
    at: int
    candidates: Candidates
    terms: Mapping[str, Floats]
    total: Floats
    allowed: Flags


class Placement(Protocol):
    """`whole`: needs to see all executors, a sample would change its meaning."""

    @property
    def name(self) -> str: ...
    @property
    def whole(self) -> bool: ...

    def place(self, candidates: Candidates) -> Decision | None:
        """None when no candidate has room."""
        ...


class Scorer(Protocol):
    """A number for each candidate, more is better; terms of one placement add up."""

    @property
    def name(self) -> str: ...

    def score(self, candidates: Candidates) -> Floats: ...


class Picker(Protocol):
    """One index among those allowed; there is at least one."""

    def pick(self, scores: Floats, candidates: Candidates, allowed: Flags) -> int: ...


def has_room(candidates: Candidates) -> Flags:
    """Instances with a free slot, not excluded for this batch."""
    room: Flags = candidates.allowed & (candidates.model_batches < candidates.slots)
    return room


class Scored:
    """Filter by room, add up the scorers' terms, pick."""

    def __init__(
        self, name: str, scorers: Sequence[Scorer], picker: Picker, *, whole: bool = False,
        looks_ahead: bool = False,
    ) -> None:  # fmt: skip
        """`looks_ahead`: what the later steps of a pipeline cost from there is one of the terms."""
        self.name, self.whole, self.looks_ahead = name, whole, looks_ahead
        self._scorers, self._picker = scorers, picker

    def place(self, candidates: Candidates) -> Decision | None:
        allowed = has_room(candidates)
        if not allowed.any():
            return None
        terms = {scorer.name: scorer.score(candidates) for scorer in self._scorers}
        if self.looks_ahead and candidates.ahead_us is not None:
            terms["ahead_us"] = -candidates.ahead_us
        total: Floats = sum(terms.values(), np.zeros(len(candidates)))
        index = self._picker.pick(total, candidates, allowed)
        scores = {name: float(values[index]) for name, values in terms.items()}
        return Decision(
            int(candidates.positions[index]), scores, index, candidates, terms, total, allowed
        )

    def __repr__(self) -> str:
        return f"<Scored {self.name}>"


# scorers


class LeastLoaded:
    """1 for an empty executor, falling with the batches it holds a parallel run.

    Weakness: batches of all models, sizes and instances are taken as equally long.
    """

    name = "load"

    def score(self, candidates: Candidates) -> Floats:
        scores: Floats = 1.0 / (1.0 + candidates.batches / candidates.parallel)
        return scores


class Transfer:
    """Minus the microseconds to bring the payload there, from measured weights (D1).

    Topology publishes weight = 1 / (1 + cost / 25 µs a MB), so that the weight gives the
    cost back. Weakness: other hosts are all equally far.
    """

    name = "transfer_us"

    def score(self, candidates: Candidates) -> Floats:
        latency_ns, ns_per_byte = candidates.ways
        size = candidates.payload_bytes or NOMINAL_BYTES
        return (latency_ns + ns_per_byte * size) * -1e-3


class Wait:
    """Minus the microseconds until the batch would start there."""

    name = "wait_us"

    def score(self, candidates: Candidates) -> Floats:
        return candidates.wait_ns * -1e-3


class Service:
    """Minus the microseconds the batch would run there."""

    name = "service_us"

    def score(self, candidates: Candidates) -> Floats:
        return candidates.speed * ((candidates.service_ns or UNKNOWN_COST_NS) * -1e-3)


# pickers


class HighestScore:
    """The best score; ties are broken at random, so that equals share the load."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def pick(self, scores: Floats, candidates: Candidates, allowed: Flags) -> int:
        masked = np.where(allowed, scores, -np.inf)
        (best,) = (masked >= masked.max() - 1e-9).nonzero()
        return int(best[self._rng.randrange(len(best))] if len(best) > 1 else best[0])


class InTurn:
    """The next allowed position after the last one picked."""

    def __init__(self) -> None:
        self._last = -1

    def pick(self, scores: Floats, candidates: Candidates, allowed: Flags) -> int:
        usable = np.flatnonzero(allowed)
        after = usable[candidates.positions[usable] > self._last]
        index = int(after[0] if len(after) else usable[0])
        self._last = int(candidates.positions[index])
        return index


class AnyOf:
    """A random one of those allowed; of `draws`, the one with the best score."""

    def __init__(self, rng: random.Random, draws: int = 1) -> None:
        self._rng, self._draws = rng, draws

    def pick(self, scores: Floats, candidates: Candidates, allowed: Flags) -> int:
        usable = np.flatnonzero(allowed)
        drawn = [int(usable[self._rng.randrange(len(usable))]) for _ in range(self._draws)]
        return max(drawn, key=scores.__getitem__)
