"""How fast each executor is sent to, by how much the way there and back trembles (D8)."""

from collections.abc import Collection
from typing import Final

from sits_dispatcher.job import Job
from sits_dispatcher.metrics import Metrics
from sits_protos.v1.link_pb2 import StageTimes
from sits_scheduling.jitter import JitterControl, JitterState, Mode, peak_per_s

OBSERVE_EVERY_NS: Final = 1_000_000
"""One round trip in that time is looked at: more would cost and tell nothing."""
LOOK_NS: Final = 1_000_000_000


class _Way:
    """To one executor. `per_s` 0 = send at will."""

    def __init__(self) -> None:
        self.control = JitterControl()
        self.per_s = 0.0
        self.not_before_ns = self.observe_ns = self.results = self.under_way = 0


class Pacing:
    """Spaces what is sent to executors whose round trips tremble.

    A round trip is from sending to the result, less the time at the executor, so that no two
    clocks are compared. Its standard deviation sets the rate (`sits_scheduling.jitter`), of a
    peak whose floor still carries what the executor works off. An executor that is due later is
    left out of placement until then, but never one that has nothing to do: after a quiet second
    what it worked off says how little was asked for, not how much it can do. Two batches are at
    each instance at any rate (`SLOTS_PER_INSTANCE`), which is the double buffering of the third
    mode; its re-scheduling is `late`.

    Known weakness: what is held back leaves with the next result, not to the microsecond. Not
    thread-safe: the dispatcher's lock covers it.
    """

    def __init__(self, metrics: Metrics, *, on: bool) -> None:
        self._metrics, self._on = metrics, on
        self._ways: dict[str, _Way] = {}
        self._paced: dict[str, _Way] = {}
        self._looked_ns = 0

    def __repr__(self) -> str:
        return f"<Pacing of {len(self._paced)} of {len(self._ways)} executors>"

    def returned(self, executor: str, job: Job, times: StageTimes, now: int) -> None:
        """A result came."""
        if not self._on:
            return
        way = self._way(executor)
        way.results += 1
        way.under_way = max(0, way.under_way - 1)
        if now >= way.observe_ns and times.executor_sent:
            way.observe_ns = now + OBSERVE_EVERY_NS
            there_ns = times.executor_sent - times.executor_received
            way.control.observe(now - job.sent_ns - there_ns)

    def sent(self, executor: str, now: int) -> None:
        """A micro-batch left: the next one follows at an even distance."""
        if not self._on:
            return
        way = self._way(executor)
        way.under_way += 1
        if way.per_s:
            way.not_before_ns = now + int(1e9 / way.per_s)

    def held(self, now: int) -> Collection[str]:
        """Executors that get nothing yet."""
        if not self._paced:
            return ()
        return [
            executor
            for executor, way in self._paced.items()
            if way.under_way and now < way.not_before_ns
        ]

    def late(self) -> bool:
        """Whether what waits at executors should be scheduled anew."""
        return any(way.control.state().reschedule for way in self._paced.values())

    def forget(self, executor: str) -> None:
        """It left."""
        self._ways.pop(executor, None)
        self._paced.pop(executor, None)

    def look(self, now: int) -> bool:
        """Set the rates anew, once a second. Whether it did."""
        if now - self._looked_ns < LOOK_NS:
            return False
        passed_s = (now - self._looked_ns) / 1e9 if self._looked_ns else 0.0
        self._looked_ns = now
        for executor, way in self._ways.items():
            self._set(executor, way, way.control.state(), passed_s)
        return True

    def _way(self, executor: str) -> _Way:
        way = self._ways.get(executor)
        if way is None:
            way = self._ways[executor] = _Way()
        return way

    def _set(self, executor: str, way: _Way, state: JitterState, passed_s: float) -> None:
        drained, way.results = way.results, 0
        self._metrics.jitter(executor, state)
        if state.mode is Mode.OFF:
            way.per_s, way.not_before_ns = 0.0, 0
            self._paced.pop(executor, None)
        elif drained and passed_s:
            way.per_s = peak_per_s(drained / passed_s) * state.rate
            self._paced[executor] = way
