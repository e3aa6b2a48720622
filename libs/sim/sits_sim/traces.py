"""Recorded traces of real requests, as arrays."""

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

import numpy as np

from sits_sim.load import Floats, Ints, replay

NAMES: Final = ("azure2023_conv", "azure2023_code", "mooncake")


@dataclass(frozen=True, slots=True)
class Trace:
    """Gaps before each arrival and the lengths of each request. Sources: data/README.md."""

    gaps_s: Floats
    input_tokens: Ints
    output_tokens: Ints

    def __len__(self) -> int:
        return len(self.gaps_s)


@dataclass(frozen=True, slots=True)
class Replayed:
    """Requests of one or more traces in order of arrival."""

    at_s: Floats
    input_tokens: Ints
    output_tokens: Ints

    def __len__(self) -> int:
        return len(self.at_s)


@cache
def trace(name: str) -> Trace:
    path = resources.files("sits_sim") / "data" / "traces.npz"
    with resources.as_file(path) as file, np.load(file, allow_pickle=False) as arrays:
        return Trace(
            arrays[f"{name}.gap_us"] / 1e6,
            arrays[f"{name}.input_tokens"].astype(np.int64),
            arrays[f"{name}.output_tokens"].astype(np.int64),
        )


def mixed(
    rate_per_s: float,
    duration_s: float,
    copies: int,
    rng: np.random.Generator,
    names: tuple[str, ...] = NAMES,
) -> Replayed:
    """Equal shares of the rate from each trace, each replayed `copies` times at once."""
    parts = [_replayed(name, rate_per_s / len(names), duration_s, copies, rng) for name in names]
    at_s = np.concatenate([part.at_s for part in parts])
    order = np.argsort(at_s, kind="stable")
    return Replayed(
        at_s[order],
        np.concatenate([part.input_tokens for part in parts])[order],
        np.concatenate([part.output_tokens for part in parts])[order],
    )


def _replayed(
    name: str, rate_per_s: float, duration_s: float, copies: int, rng: np.random.Generator
) -> Replayed:
    recorded = trace(name)
    at_s, rows = replay(recorded.gaps_s, rate_per_s, duration_s, copies, rng)
    return Replayed(at_s, recorded.input_tokens[rows], recorded.output_tokens[rows])
