"""How large a scenario runs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Size:
    """`scale` 1 = as the figures are stated; less = a quick look, whose bars need not hold.
    `workers` 0 = all cores, 1 = only this process."""

    seed: int = 1
    scale: float = 1.0
    workers: int = 0

    def of(self, full: int, step: int = 1, least: int = 1) -> int:
        """`full` times the scale, in multiples of `step`."""
        return max(least, step * round(full * self.scale / step))
