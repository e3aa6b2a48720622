"""Short runs keep off a processor that somebody needs for itself, and who asks for that."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from sits_core import claims, processors
from sits_core.claims import Claim
from sits_core.processors import KeepOff
from sits_core.settings import SettingsError


class Computing:
    """A thread that is there, and how long it has had something to do."""

    def __init__(self) -> None:
        self.now_s = self.busy_s = 0.0
        self._end = threading.Event()
        self.thread = threading.Thread(target=self._end.wait)
        self.thread.start()
        self.keep_off = KeepOff(lambda: [self.thread], lambda: self.now_s, lambda _: self.busy_s)

    def may_use(self) -> set[int]:
        assert self.thread.native_id is not None
        return os.sched_getaffinity(self.thread.native_id)

    def go_on(self, seconds: float, share: float) -> set[int]:
        """Where it may run after looks for so long, in which it was busy so much."""
        for _ in range(round(seconds / processors.KEEP_OFF_S)):
            self.now_s += processors.KEEP_OFF_S
            self.busy_s += share * processors.KEEP_OFF_S
            self.keep_off.look()
        return self.may_use()

    def end(self) -> None:
        self._end.set()
        self.thread.join()


@pytest.fixture
def computing() -> Iterator[Computing]:
    found = Computing()
    yield found
    found.end()


@pytest.fixture
def claimed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Claim]:
    """The first processor, under a name that no other test takes."""
    ours = sorted(os.sched_getaffinity(0))
    if len(ours) == 1:
        pytest.skip("needs two processors")
    monkeypatch.setattr(claims, "NAME", f"sits-test-keep-off-{os.getpid()}")
    found = claims.claim(ours)
    assert found is not None
    assert found.cpu == ours[0]
    yield found
    found.end()


def test_short_runs_keep_off_while_asked_to(claimed: Claim, computing: Computing) -> None:
    ours = os.sched_getaffinity(0)
    assert computing.go_on(1, 0.5) == ours, "it is claimed, but nobody asks for it"
    claimed.ask()
    claimed.ask()
    assert computing.go_on(100, 0.5) == ours - {claimed.cpu}
    claimed.leave()
    assert computing.go_on(1, 0.5) == ours


def test_who_always_has_something_to_do_is_free_for_longer_each_time(
    claimed: Claim, computing: Computing
) -> None:
    """It computes much, or waits for what others compute on the processors that are left."""
    ours = os.sched_getaffinity(0)
    claimed.ask()
    bound = ours - {claimed.cpu}
    assert computing.go_on(1, 0.2) == bound
    for free_s in (processors.FREE_S, 2 * processors.FREE_S, 4 * processors.FREE_S):
        assert computing.go_on(processors.KEEP_OFF_S, 0.9) == ours
        assert computing.go_on(free_s - 1, 0.2) == ours
        assert computing.go_on(1, 0.2) == bound
    claimed.leave()
    assert computing.go_on(1, 0.2) == ours
    claimed.ask()
    assert computing.go_on(1, 0.2) == bound
    assert computing.go_on(processors.KEEP_OFF_S, 0.9) == ours
    assert computing.go_on(processors.FREE_S, 0.2) == bound, "anew"


def test_a_thread_is_busy_while_it_runs_and_while_it_waits_for_a_processor() -> None:
    found: list[float] = []

    def run() -> None:
        me = threading.get_native_id()
        before, used_s = processors._busy_s(me), time.thread_time()
        while time.thread_time() - used_s < 0.05:
            pass
        found.append(processors._busy_s(me) - before)
        time.sleep(0.2)
        found.append(processors._busy_s(me) - before)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found[0] > 0.03
    assert processors._busy_s(0) == 0.0, "no such thread"


def test_what_could_not_be_freed_is_tried_again(
    claimed: Claim, computing: Computing, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = os.sched_getaffinity(0)
    claimed.ask()
    assert computing.go_on(1, 0.2) != ours
    claimed.leave()
    with monkeypatch.context() as broken:
        broken.setattr(processors, "_run_on", _not_now)
        with pytest.raises(SettingsError):
            computing.go_on(1, 0.2)
    assert computing.go_on(1, 0.2) == ours


def _not_now(*_args: object) -> None:
    raise SettingsError("not now")


def test_of_many_processors_nobody_keeps_off(
    claimed: Claim, computing: Computing, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = os.sched_getaffinity(0)
    claimed.ask()
    monkeypatch.setattr(processors, "FEW", 1)
    computing.keep_off.start()
    time.sleep(2 * processors.KEEP_OFF_S)
    assert computing.may_use() == ours
    computing.keep_off.stop()


def test_who_is_asked_to_keep_off_everything_stays(
    computing: Computing, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = os.sched_getaffinity(0)
    monkeypatch.setattr(claims, "kept_free", frozenset)
    assert computing.go_on(1, 0.2) == ours


ASKING = """
import os, sys, time
import structlog
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
from sits_core import claims, processors
claims.NAME = {name!r}
processors.PythonThreads("auto", "SITS_X").start()
print("busy", flush=True)
limit = time.monotonic() + 20
while not (asked := claims.kept_free(os.sched_getaffinity(0))) and time.monotonic() < limit:
    sum(range(10_000))
print(sorted(asked), flush=True)
sys.stdin.read()
"""


def test_a_busy_process_asks_for_its_processor_and_a_killed_one_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = sorted(os.sched_getaffinity(0))
    if len(ours) == 1:
        pytest.skip("needs two processors")
    name = f"sits-test-asking-{os.getpid()}"
    monkeypatch.setattr(claims, "NAME", name)
    with subprocess.Popen(
        [sys.executable, "-c", ASKING.format(name=name)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert [process.stdout.readline().strip() for _ in range(2)] == ["busy", f"{ours[:1]}"]
        assert claims.kept_free(ours) == {ours[0]}
        process.kill()
    assert claims.kept_free(ours) == frozenset()
