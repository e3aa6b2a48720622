"""Rows of the reported faults that this layer decides: BAT-01 here; BAT-05 and BRK-01 are in
test_breaker.py. BAT-02 and BAT-03 are about batch keys and the executor's arrays."""

import heapq
from collections.abc import Callable

import pytest

from sits_scheduling.batching import BatchPolicy, BatchQueue, Capacity, CloseReason, Entry

MS = 1_000_000
RUN_NS = 200 * MS


class OneInstance:
    """An instance that takes 200 ms a run, and a front that looks when something happens."""

    def __init__(self, policy: BatchPolicy, slots: int = 1) -> None:
        self.queue: BatchQueue[int] = BatchQueue(policy)
        self.runs: list[tuple[int, int, CloseReason]] = []
        self._slots, self._line, self._free_ns, self._known = slots, 0, 0, False
        self._events: list[tuple[int, int, Callable[[int], None]]] = []

    def arrive(self, at_ns: int, count: int = 1) -> None:
        for number in range(count):
            self._at(at_ns, lambda now, n=number: self.queue.add(Entry(n, 1, 10, now)))

    def run(self) -> list[int]:
        """Sizes of all runs in order."""
        looked: set[int] = set()
        while self._events:
            now, _, event = heapq.heappop(self._events)
            event(now)
            while self._events and self._events[0][0] == now:
                heapq.heappop(self._events)[2](now)
            self._pump(now)
            wake = self.queue.next_wakeup_ns(now, self._capacity())
            if wake is not None and wake not in looked:
                looked.add(wake)
                self._at(max(now, wake), lambda now: None)
        return [rows for _, rows, _ in self.runs]

    def _pump(self, now: int) -> None:
        while (reason := self.queue.should_close(now, self._capacity())) is not None:
            batch = self.queue.take(reason, now)
            self._line += 1
            started = max(now, self._free_ns)
            self._free_ns = started + RUN_NS
            self.runs.append((started, batch.rows, batch.reason))
            self._at(self._free_ns, self._done)

    def _done(self, now: int) -> None:
        self._line -= 1
        self._known = True

    def _capacity(self) -> Capacity:
        free_ns = self._free_ns if self._known else 0
        return Capacity(self._slots - self._line, 1 - min(1, self._line), free_ns, RUN_NS)

    def _at(self, at_ns: int, event: Callable[[int], None]) -> None:
        heapq.heappush(self._events, (at_ns, len(self._events) + 1000 * len(self.runs), event))


@pytest.mark.parametrize("slots", [1, 2])
def test_bat_01a_what_comes_during_a_run_goes_into_the_next_one(slots: int) -> None:
    world = OneInstance(BatchPolicy(8), slots)
    world.arrive(0)
    for number in range(9):
        world.arrive((10 + number) * MS)
    assert world.run() == [1, 8, 1]


def test_bat_01b_the_delay_counts_from_the_oldest_request() -> None:
    world = OneInstance(BatchPolicy(8, window_ns=50 * MS))
    for at in (0, 2 * MS, 5 * MS):
        world.arrive(at)
    world.run()
    assert world.runs == [(50 * MS, 3, CloseReason.WINDOW)]


@pytest.mark.parametrize("count", [20, 40, 80])
def test_bat_01c_a_long_delay_gathers_all_that_comes(count: int) -> None:
    world = OneInstance(BatchPolicy(400, window_ns=2000 * MS))
    for number in range(count):
        world.arrive(number * MS)
    world.run()
    assert world.runs == [(2000 * MS, count, CloseReason.WINDOW)]


def test_bat_01d_a_full_batch_does_not_wait_for_the_delay() -> None:
    world = OneInstance(BatchPolicy(8, window_ns=50 * MS))
    world.arrive(MS, count=8)
    world.run()
    assert world.runs == [(MS, 8, CloseReason.ROWS)]
