"""Simulated time: SimPy's clock counts whole nanoseconds, as the decision code does."""

from collections.abc import Callable, Generator
from typing import Final

import simpy

NS_PER_US: Final = 1_000
NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000

Process = Generator[simpy.Event, object, None]


class Clock:
    """A SimPy environment with callbacks after a time: a generator for each of a million
    batches would cost more than all the rest."""

    def __init__(self) -> None:
        self.env = simpy.Environment(initial_time=0)

    @property
    def now_ns(self) -> int:
        return int(self.env.now)

    def after(self, delay_ns: int, call: Callable[[], None]) -> None:
        event = self.env.timeout(max(0, delay_ns))
        event.callbacks.append(lambda _: call())

    def process(self, steps: Process) -> None:
        self.env.process(steps)

    def wait(self, delay_ns: int) -> simpy.Event:
        return self.env.timeout(max(0, delay_ns))

    def every(self, period_ns: int, call: Callable[[], None], until_ns: int) -> None:
        """Call each `period_ns`, until `until_ns`."""
        self.process(self._every(period_ns, call, until_ns))

    def run(self) -> None:
        """Until nothing is left to happen."""
        self.env.run()

    def run_until(self, moment_ns: int) -> None:
        """What would happen later does not."""
        self.env.run(until=moment_ns)

    def _every(self, period_ns: int, call: Callable[[], None], until_ns: int) -> Process:
        while self.now_ns + period_ns <= until_ns:
            yield self.wait(period_ns)
            call()
