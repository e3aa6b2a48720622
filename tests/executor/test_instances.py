"""Which thread runs a batch."""

import threading
from collections.abc import Iterator
from itertools import chain, repeat

import pytest

from sits_core.testing import wait_until
from sits_executor import instances
from sits_executor.batch import Batch
from sits_executor.instances import FEW, SHORT_NS, Instances
from sits_executor.queue import BatchQueue
from sits_protos.v1.link_pb2 import BatchHeader, RequestHeader

TIMEOUT_S = 10.0


class Bench:
    """Instances whose runs say on which thread they were; each takes the next of `times_ns`, and
    `whole` says whether all of it ran."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *times_ns: int, never_waits: bool = True
    ) -> None:
        self.queue, self.ran, self.ended = BatchQueue(8), list[str](), threading.Event()
        self.whole = True
        self._times: Iterator[int] = chain(times_ns, repeat(0))
        self._now = 0
        monkeypatch.setattr(instances, "now_ns", lambda: self._now)
        Instances("m/1", 1, self.queue, self._run, self.ended.set, never_waits=never_waits).start()
        self.at_rest()

    def _run(self, batch: Batch) -> bool:
        self._now += next(self._times)
        self.ran.append(threading.current_thread().name)
        return self.whole

    def at_rest(self) -> None:
        wait_until(lambda: self.queue._idle, what="an instance that waits")

    def bring(self, rows: int = 1, requests: int = 1) -> str:
        """Where it ran."""
        before = len(self.ran)
        headers = [RequestHeader()] * requests
        batch = Batch(BatchHeader(), headers, [], [rows], 0, lambda _: True, "a")
        if not self.queue.run_here(batch):
            self.queue.write(batch)
            wait_until(lambda: len(self.ran) > before, what="the run of a batch")
            self.at_rest()
        return "here" if self.ran[-1] == threading.current_thread().name else "there"


def test_a_short_batch_runs_on_the_thread_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    assert [bench.bring() for _ in range(3)] == ["there", "here", "here"]


def test_a_size_that_was_not_seen_to_be_short_runs_on_its_own_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch)
    assert [bench.bring(rows) for rows in (1, 4, 2, 4, 5)] == [
        "there", "there", "here", "here", "there",
    ]  # fmt: skip


def test_a_size_that_took_long_goes_back_to_its_own_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch, 0, SHORT_NS)
    assert [bench.bring(4) for _ in range(4)] == ["there", "here", "there", "here"]
    assert bench.bring(1) == "here"


def test_what_did_not_run_says_nothing_of_how_long_a_run_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody waited any more, or the model refused it at once: the next one may take a minute, in
    which nothing else of its link would be read."""
    bench = Bench(monkeypatch)
    bench.whole = False
    assert [bench.bring() for _ in range(3)] == ["there"] * 3


def test_a_batch_of_many_requests_runs_on_its_own_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch)
    bench.bring(rows=99)
    assert bench.bring(rows=99, requests=FEW) == "here"
    assert bench.bring(rows=99, requests=FEW + 1) == "there"


def test_what_may_wait_for_something_never_runs_on_the_thread_that_brings_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch, never_waits=False)
    assert [bench.bring() for _ in range(3)] == ["there"] * 3


def test_a_closed_model_runs_nothing_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.bring()
    bench.queue.close()
    assert bench.ended.wait(TIMEOUT_S)
    batch = Batch(BatchHeader(), [RequestHeader()], [], [1], 0, lambda _: True, "a")
    assert not bench.queue.run_here(batch)
