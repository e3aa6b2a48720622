"""How many rows a micro-batch may have: what the free memory of its device allows."""

from collections.abc import Callable
from typing import Final

LEAST_ROWS: Final = 8
MOST_ROWS: Final = 64
RESERVE: Final = 0.1
"""Part of the free memory that stays free: allocators round up and fragment."""


def micro_batch_rows(
    free_bytes: float, row_bytes: float, factor: float = 1.0, most: int = MOST_ROWS
) -> int:
    """Rows for a device with `free_bytes`, a row needing `row_bytes` of inputs, outputs and
    activations (0 = not known: as many as allowed).

    Between 8 and `most`, in eights so that few sizes occur; `factor` shrinks it under
    pressure (governance). With memory for fewer than 8 it is what fits, at least 1: small
    batches are slow, none would be a standstill. Weakness: activations are taken as growing
    evenly with the rows.
    """
    fits = (1.0 - RESERVE) * free_bytes / row_bytes if row_bytes > 0 else float(most)
    rows = min(fits, float(most)) * factor
    if rows >= LEAST_ROWS:
        return int(rows) // LEAST_ROWS * LEAST_ROWS
    return max(1, int(min(fits, LEAST_ROWS, most)))


DEARER: Final = 1.1
"""A row may cost this much more in a smaller batch; beyond, smaller batches are no relief."""


def shrunk_rows(rows: int, factor: float, row_ns: Callable[[int], float]) -> int:
    """`rows` under pressure (D6, level 2): `factor` of them, not below 8, and only where a row
    then costs about the same.

    `row_ns` tells what a row costs in a batch of so many, 0 = not known. A model whose runs
    take as long for half of the rows would lose half of its capacity, which is what is short.
    """
    fewer = max(min(rows, LEAST_ROWS), int(rows * factor))
    return rows if row_ns(fewer) > DEARER * row_ns(rows) else fewer
