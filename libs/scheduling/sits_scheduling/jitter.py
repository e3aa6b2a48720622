"""Slows and smooths sending when the way to the executors trembles (D8)."""

import math
from collections import deque
from enum import Enum
from typing import Final, NamedTuple

NS_PER_MS: Final = 1_000_000
WINDOW: Final = 64
"""Round trips that the standard deviation is taken over."""
_LEAST: Final = 8

OFF_BELOW_MS: Final = 10.0
SLOW_FROM_MS: Final = 25.0
SLOWEST_AT_MS: Final = 40.0
BUFFER_ABOVE_MS: Final = 50.0
FLOOR: Final = 0.3
_GAP_MS: Final = 3.0
"""A mode is left this much below where it is entered."""


class Mode(Enum):
    """OFF: send at will. PACED: evenly, at the rate. BUFFERED: also keep a second batch at the
    executor, so that it works while the next one is late, and re-schedule what is late."""

    OFF = 0
    PACED = 1
    BUFFERED = 2


class JitterState(NamedTuple):
    """`rate`: of the peak send rate, 0.3 to 1. `buffers`: batches to keep at an executor."""

    stdev_ms: float
    mode: Mode
    rate: float
    buffers: int
    reschedule: bool


class JitterControl:
    """The standard deviation of stage round trips sets the send rate.

    Rule (D8): below 10 ms off; from 10 ms sends are spaced evenly at the peak rate; from
    25 to 40 ms the rate falls on a line to its floor of 30 %; above 50 ms two batches are
    kept at each executor and late work is re-scheduled.

    The rate is of the peak, which is what a burst may reach, not of the mean. Take as peak
    what executors drain over the floor (`peak_per_s`): then the floor still carries all
    they drain, and what suffers is the bursts, not the throughput.

    Weakness: a trend in round trips looks like jitter until the window has passed it.
    """

    def __init__(self) -> None:
        self._trips_ms: deque[float] = deque()
        self._sum = self._squares = 0.0
        self._mode = Mode.OFF

    def __repr__(self) -> str:
        return f"<JitterControl {self.state()}>"

    def observe(self, round_trip_ns: int) -> None:
        """A message came back after `round_trip_ns`, service time taken off."""
        trip = round_trip_ns / NS_PER_MS
        self._trips_ms.append(trip)
        self._add(trip, 1)
        if len(self._trips_ms) > WINDOW:
            self._add(self._trips_ms.popleft(), -1)
        self._mode = self._next_mode(self.stdev_ms())

    def stdev_ms(self) -> float:
        count = len(self._trips_ms)
        if count < _LEAST:
            return 0.0
        return math.sqrt(max(0.0, self._squares - self._sum**2 / count) / (count - 1))

    def state(self) -> JitterState:
        stdev, mode = self.stdev_ms(), self._mode
        buffered = mode is Mode.BUFFERED
        rate = 1.0 if mode is Mode.OFF else rate_at(stdev)
        return JitterState(stdev, mode, rate, 2 if buffered else 1, buffered)

    def _add(self, trip: float, sign: int) -> None:
        self._sum += sign * trip
        self._squares += sign * trip * trip

    def _next_mode(self, stdev: float) -> Mode:
        if stdev > BUFFER_ABOVE_MS - (_GAP_MS if self._mode is Mode.BUFFERED else 0.0):
            return Mode.BUFFERED
        if stdev >= OFF_BELOW_MS - (0.0 if self._mode is Mode.OFF else _GAP_MS):
            return Mode.PACED
        return Mode.OFF


def rate_at(stdev_ms: float) -> float:
    """1 up to 25 ms, on a line to the floor at 40 ms and above."""
    part = (stdev_ms - SLOW_FROM_MS) / (SLOWEST_AT_MS - SLOW_FROM_MS)
    return 1.0 - (1.0 - FLOOR) * min(1.0, max(0.0, part))


def peak_per_s(drained_per_s: float) -> float:
    """The peak whose floor still carries what executors drain."""
    return drained_per_s / FLOOR


class Pacer:
    """Even spacing: the earliest moment for each next message."""

    def __init__(self) -> None:
        self._next_ns = 0

    def wait_ns(self, now_ns: int, per_s: float) -> int:
        """How long to hold the next message back; the call takes its place in the line."""
        at = max(now_ns, self._next_ns)
        self._next_ns = at + int(1e9 / per_s)
        return at - now_ns
