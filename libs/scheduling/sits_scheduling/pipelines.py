"""Where the steps of a pipeline run: next to their data."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sits_scheduling.columns import Floats, Ints


class Step(NamedTuple):
    """One step: `cost_us` until a candidate would be done with it once its input is there
    (wait + run time), and the bytes of its input."""

    cost_us: Floats
    input_bytes: float


class Path(NamedTuple):
    """The candidate of each step, and the predicted time of the whole."""

    choices: tuple[int, ...]
    total_us: float


def costs_ahead(steps: Sequence[Step], us_per_byte: Sequence[Floats], start_us: float) -> Floats:
    """The predicted time of the cheapest way through `steps` from each place where their first
    input may lie, in microseconds. Same costs as `best_path`; `us_per_byte[k]` leads to the
    candidates of step k."""
    ahead = np.zeros(us_per_byte[-1].shape[1])
    for step, way in zip(reversed(steps), reversed(us_per_byte), strict=True):
        ahead = (_hand_over(step, way, start_us) + step.cost_us + ahead).min(axis=1)
    return ahead


def best_path(
    steps: Sequence[Step], from_source_us: Floats, us_per_byte: Sequence[Floats], start_us: float
) -> Path:
    """The cheapest assignment of all steps together (D2), by dynamic programming.

    `from_source_us`: bringing the first input to each candidate of the first step.
    `us_per_byte[k]`: from the candidates of step k to those of step k + 1, [n_k, n_k+1], 0
    where they are the same device; `start_us` is added to each hand-over that is not free.

    Exact for the costs given, in O(steps × candidates²): pass a shortlist. Weakness: waits
    are those of now; the load a path puts on a device twice is not counted.
    """
    total = from_source_us + steps[0].cost_us
    origins: list[Ints] = []
    for step, way in zip(steps[1:], us_per_byte, strict=True):
        through = total[:, None] + _hand_over(step, way, start_us)
        origins.append(through.argmin(axis=0))
        total = through.min(axis=0) + step.cost_us
    last = int(total.argmin())
    choices = [last]
    for origin in reversed(origins):
        choices.append(int(origin[choices[-1]]))
    return Path(tuple(reversed(choices)), float(total[last]))


def _hand_over(step: Step, way: Floats, start_us: float) -> Floats:
    """Bringing a step its input, free where it is already."""
    return np.where(way > 0, start_us + step.input_bytes * way, 0.0)
