"""Load shapes for an open loop: when requests come, how large they are, whose they are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from sits_bench.messages import Array, Inference
from sits_sim import load, traces
from sits_sim.load import Floats, Ints

MAX_ROWS: Final = 32
TENANTS: Final = ("gold", "silver", "bronze")
NOISY: Final = TENANTS.index("bronze")
TOKENS_PER_ROW: Final = 256
"""Turns the lengths of a recorded request into rows of ours."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Arrivals in seconds; each asks for `rows` rows and belongs to `kind` (see `kinds`)."""

    at_s: Floats
    rows: Ints
    kind: Ints
    kinds: Sequence[str]

    def inferences(self, row: Array, model: str) -> tuple[list[Inference], Ints]:
        """The different requests, and which of them each arrival sends."""
        pairs, which = np.unique(np.stack([self.kind, self.rows]), axis=1, return_inverse=True)
        named = self.kinds == TENANTS
        found = [
            Inference(
                model,
                {"INPUT": np.repeat(row, rows, axis=0)},
                {"sits_tenant": self.kinds[kind]} if named else {},
                kind=int(kind),
            )
            for kind, rows in pairs.T
        ]
        return found, which.ravel().astype(np.int64)


Maker = Callable[[float, float, np.random.Generator], Shape]


def _plain(at_s: Floats, rows: Ints | None = None) -> Shape:
    count = len(at_s)
    ones = np.ones(count, np.int64)
    return Shape(at_s, ones if rows is None else rows, np.zeros(count, np.int64), ("all",))


def poisson(rate_per_s: float, duration_s: float, rng: np.random.Generator) -> Shape:
    return _plain(load.poisson(rate_per_s, duration_s, rng))


def long_tail(rate_per_s: float, duration_s: float, rng: np.random.Generator) -> Shape:
    """A twentieth of the requests are several times as large as the others."""
    at_s = load.poisson(rate_per_s, duration_s, rng)
    return _plain(at_s, _rows(load.long_tail(len(at_s), rng)))


def burst(rate_per_s: float, duration_s: float, rng: np.random.Generator) -> Shape:
    """Five times the base rate for 3 s of every 15 s."""
    return _plain(load.Burst().warp(load.poisson(rate_per_s, duration_s, rng)))


def noisy_neighbour(rate_per_s: float, duration_s: float, rng: np.random.Generator) -> Shape:
    """Three tenants with equal mean rates, one of which comes in bursts."""
    rates = np.full(len(TENANTS), rate_per_s / len(TENANTS))
    stream = load.noisy_neighbour(rates, NOISY, duration_s, rng)
    return Shape(stream.at_s, np.ones(len(stream.at_s), np.int64), stream.tenant, TENANTS)


def replay(rate_per_s: float, duration_s: float, rng: np.random.Generator) -> Shape:
    """Recorded requests of public traces, at our rate."""
    recorded = traces.mixed(rate_per_s, duration_s, 1, rng)
    return _plain(recorded.at_s, _rows(recorded.input_tokens / TOKENS_PER_ROW))


def _rows(sizes: Floats) -> Ints:
    return np.clip(np.ceil(sizes), 1, MAX_ROWS).astype(np.int64)


SHAPES: Final[dict[str, Maker]] = {
    "poisson": poisson,
    "long-tail": long_tail,
    "burst": burst,
    "noisy-neighbour": noisy_neighbour,
    "replay": replay,
}
