"""How long a model runs on one device, by batch size: measured points, straight lines between.

Sources of the points are in docs/simulator.md.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from sits_sim.load import Floats

NS_PER_US: Final = 1_000
Z_P99: Final = 2.326
"""The 99th percentile of a normal distribution in standard deviations."""


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """`spread` is p99 over p50 of one batch size; 1 = always the same."""

    name: str
    rows: tuple[int, ...]
    median_us: tuple[float, ...]
    spread: float = 1.0

    @property
    def max_rows(self) -> int:
        """Largest batch that was measured, hence the largest that is run."""
        return self.rows[-1]

    def of(self, rows: int) -> float:
        """Median in µs. Larger work than was measured runs as several batches."""
        whole, rest = divmod(rows, self.max_rows)
        last = float(np.interp(rest, self.rows, self.median_us)) if rest else 0.0
        return whole * self.median_us[-1] + last

    def table_ns(self) -> list[int]:
        """By number of rows, from 0 to `max_rows`."""
        return [round(self.of(rows) * NS_PER_US) for rows in range(self.max_rows + 1)]

    def noise(self, count: int, rng: np.random.Generator) -> Floats:
        """Factors on the median, log-normal with this spread."""
        sigma = np.log(self.spread) / Z_P99
        return rng.lognormal(0.0, sigma, count) if sigma > 0 else np.ones(count)

    def rows_per_s(self) -> float:
        """Of one device that always runs full batches."""
        return self.max_rows * 1e6 / self.median_us[-1]


TRANSFORMER = ServiceTimes("transformer", (1, 8, 32), (198.0, 242.0, 455.0), spread=214 / 198)
"""Six layers, width 384, 128 tokens a row, fp16, CUDA graphs on an H200."""

TRANSFORMER_EAGER = ServiceTimes(
    "transformer, eager", (1, 8, 32), (1122.0, 1149.0, 1860.0), spread=1837 / 1122
)
"""The same without CUDA graphs."""

ENCODER_CPU = ServiceTimes("encoder on a CPU core", (1, 8, 32), (6200.0, 29000.0, 107000.0))
"""Six layers, width 512, 8 tokens a row, ONNX Runtime on one core."""
