"""Looks at devices while a run goes on: how busy they are and how evenly."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from sits_sim.clock import Clock, Process

SAMPLES = 200


class Observed(Protocol):
    """A device, as far as a meter cares."""

    @property
    def work_ns(self) -> int: ...

    def busy_until_ns(self, now_ns: int) -> int: ...


class Meter:
    """Samples between two moments, evenly spread.

    The load of a device is the work it holds: what runs and what waits, in milliseconds of
    service time.
    """

    def __init__(
        self, clock: Clock, devices: Sequence[Observed], start_ns: int, end_ns: int
    ) -> None:
        self._clock, self._devices = clock, devices
        self._start_ns, self._end_ns = start_ns, end_ns
        self._busy_ns = 0
        self._deviations: list[float] = []
        self._means: list[float] = []
        clock.process(self._sample())

    @property
    def utilisation(self) -> float:
        """Mean share of the time in which a device ran a batch."""
        return self._busy_ns / (len(self._devices) * (self._end_ns - self._start_ns))

    @property
    def load_deviation_ms(self) -> float:
        """Standard deviation of the load over devices, mean over time."""
        return float(np.mean(self._deviations))

    @property
    def load_ms(self) -> float:
        return float(np.mean(self._means))

    def _sample(self) -> Process:
        yield self._clock.wait(self._start_ns)
        before_ns = self._busy()
        for _ in range(SAMPLES):
            loads = np.array([device.work_ns for device in self._devices]) / 1e6
            self._deviations.append(float(loads.std()))
            self._means.append(float(loads.mean()))
            yield self._clock.wait((self._end_ns - self._start_ns) // SAMPLES)
        self._end_ns = self._clock.now_ns
        self._busy_ns = self._busy() - before_ns

    def _busy(self) -> int:
        return sum(device.busy_until_ns(self._clock.now_ns) for device in self._devices)
