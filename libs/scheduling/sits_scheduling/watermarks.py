"""How full the three buffers before a device may get: queue, staging, device (E5)."""

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

BASE: Final = 128
"""Samples, at single precision."""
LOW_PART: Final = 0.5


class Precision(Enum):
    """The value is the factor on the base: formats that run faster per sample are held to
    less, since what waits in front of them is older by the time it is run."""

    FP32 = 1.0
    FP16 = 0.85
    BF16 = 0.75


class Buffer(Enum):
    """The value is the part of the base: the nearer to the device, the scarcer the memory."""

    QUEUE = 1.0
    STAGING = 0.5
    DEVICE = 0.25


class Watermarks(NamedTuple):
    """Samples. Filling stops at `high` and goes on below `low`."""

    high: int
    low: int


def watermarks(precision: Precision, buffer: Buffer, base: int = BASE) -> Watermarks:
    high = max(1, round(base * precision.value * buffer.value))
    return Watermarks(high, max(0, int(high * LOW_PART)))


@dataclass(slots=True)
class Gauge:
    """One buffer's fill against its marks, with hysteresis.

    Weakness: counts samples; samples of very different sizes need marks in bytes.
    """

    marks: Watermarks
    held: int = 0
    stopped: bool = False

    def change(self, samples: int) -> bool:
        """Samples came (or left, negative). Returns whether the next may come."""
        self.held = max(0, self.held + samples)
        if self.held >= self.marks.high:
            self.stopped = True
        elif self.held <= self.marks.low:
            self.stopped = False
        return not self.stopped

    @property
    def level(self) -> float:
        """0 empty, 1 at the high mark or above."""
        return min(1.0, self.held / self.marks.high)
