"""How full the three buffers of one model are: queue, staging, device (E5).

Samples are held back at the marks of `sits_scheduling.watermarks`, which depend on the model's
precision. What is announced to dispatchers always fits into the queue, and two batches always
fit on the device: with fewer it would idle between them.
"""

from typing import Final

from sits_scheduling.watermarks import BASE, Buffer, Gauge, Precision, watermarks

ALWAYS: Final = 2


class Buffers:
    """`base` samples at single precision; `announced` are those that dispatchers may send."""

    def __init__(self, precision: Precision, base: int = BASE, announced: int = 0) -> None:
        fits = round(announced / precision.value) + 1 if announced else 0
        self.queue = Gauge(watermarks(precision, Buffer.QUEUE, max(base, fits)))
        self.staging = Gauge(watermarks(precision, Buffer.STAGING, base))
        self.device = Gauge(watermarks(precision, Buffer.DEVICE, base))
        self._running = self._staged = 0

    @property
    def may_launch(self) -> bool:
        return not self.device.stopped or self._running < ALWAYS

    @property
    def may_stage(self) -> bool:
        return not self.staging.stopped or self._staged == 0

    def staged(self, rows: int) -> None:
        self._staged += 1
        self.staging.change(rows)

    def unstaged(self, rows: int) -> None:
        self._staged -= 1
        self.staging.change(-rows)

    def launched(self, rows: int) -> None:
        self._running += 1
        self.device.change(rows)

    def landed(self, rows: int) -> None:
        self._running -= 1
        self.device.change(-rows)

    def levels(self) -> dict[str, float]:
        return {
            "queue": self.queue.level,
            "staging": self.staging.level,
            "device": self.device.level,
        }

    def held(self) -> dict[str, int]:
        """Samples."""
        return {
            "queue": self.queue.held,
            "staging": self.staging.held,
            "device": self.device.held,
        }
