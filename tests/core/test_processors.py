"""Where threads run, seen from inside of a process."""

import contextlib
import os
import subprocess
import sys
import threading

import pytest

from sits_core import processors
from sits_core.processors import PythonThreads
from sits_core.settings import SettingsError

PINNED = """
import os, threading
from sits_core.processors import pin
pin({cpus!r})
seen = []
thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
thread.start()
thread.join()
print(sorted(seen[0]))
"""


def pinned(cpus: str) -> str:
    command = [sys.executable, "-c", PINNED.format(cpus=cpus)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_process_and_its_threads_run_where_they_are_told_to() -> None:
    ours = sorted(os.sched_getaffinity(0))
    assert pinned("") == str(ours)
    assert pinned(f"{ours[0]}") == str(ours[:1])
    assert pinned(f"{ours[0]}-{ours[0]},{ours[-1]}") == str(sorted({ours[0], ours[-1]}))


PYTHON_PINNED = """
import os, threading
from sits_core.processors import PythonThreads
seen, go = [], threading.Event()
def look():
    go.wait()
    seen.append(os.sched_getaffinity(0))
old = threading.Thread(target=look)
old.start()
PythonThreads({cpus!r}, "SITS_X").start()
new = threading.Thread(target=look)
new.start()
go.set()
old.join()
new.join()
print(sorted(os.sched_getaffinity(0)), *map(sorted, seen))
"""


def test_threads_of_python_run_where_they_are_told_to_the_old_and_the_new() -> None:
    ours = sorted(os.sched_getaffinity(0))
    for cpus, expected in (("", ours), (f"{ours[-1]}", ours[-1:])):
        command = [sys.executable, "-c", PYTHON_PINNED.format(cpus=cpus)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == " ".join([str(expected)] * 3)


def test_processors_for_python_that_are_not_there_are_a_wrong_setting() -> None:
    with pytest.raises(SettingsError, match="SITS_X=4000"):
        PythonThreads("4000", "SITS_X").start()


@pytest.mark.parametrize("wrong", ["1-0", "0,3-1", "99999999999999999999", "0-99999999999"])
def test_a_range_that_cannot_be_is_a_wrong_setting(wrong: str) -> None:
    with pytest.raises(SettingsError, match=f"SITS_X={wrong}: .* expected such as 0-3"):
        PythonThreads(wrong, "SITS_X").start()


def test_processors_that_are_not_there_are_a_wrong_setting() -> None:
    with pytest.raises(SettingsError, match="SITS_CPUS=4000-4003"):
        processors.pin("4000-4003")


def test_some_that_are_not_there_are_named() -> None:
    first = min(os.sched_getaffinity(0))
    code = f"from sits_core.processors import pin; pin('{first},4000')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"SITS_CPUS={first},4000: this process may not use 4000" in done.stderr


CLAIMING = """
import os, sys
import structlog
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
from sits_core import claims, processors
claims.NAME = {name!r}
python = processors.PythonThreads("auto", "SITS_X", last_first={last_first})
python.start()
print(sorted(python.cpus), flush=True)
sys.stdin.read()
"""


class Claiming:
    """A process that wants one of its own among names that no other test takes."""

    def __init__(self, name: str, *, last_first: bool = False) -> None:
        command = [sys.executable, "-c", CLAIMING.format(name=name, last_first=last_first)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def test_each_process_gets_a_processor_of_its_own_until_none_is_left() -> None:
    ours = sorted(os.sched_getaffinity(0))
    if len(ours) == 1:
        pytest.skip("needs two processors")
    name = f"sits-test-{os.getpid()}"
    claiming = [Claiming(name), Claiming(name, last_first=True)]
    claiming += [Claiming(name) for _ in ours[2:]]
    assert claiming[0].said == f"{ours[:1]}"
    assert claiming[1].said == f"{ours[-1:]}"
    late = Claiming(name)
    assert late.said == "[]"
    claiming[0].end()
    again = Claiming(name)
    assert again.said == claiming[0].said, "a killed process holds nothing"
    for each in (*claiming[1:], late, again):
        each.end()


def test_with_a_single_processor_there_is_nothing_to_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3})
    python = PythonThreads("auto", "SITS_X")
    python.start()
    assert python.cpus == frozenset()


MOVING = """
import os, sys, threading, time
import structlog
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
from sits_core import claims, processors
claims.NAME = {name!r}
overloaded = threading.Event()
python = processors.PythonThreads("auto", "SITS_X", overloaded=overloaded.is_set)
python.start()
for line in sys.stdin:
    overloaded.clear() if "calm" in line else overloaded.set()
    wanted, limit = len(python.cpus) if "calm" in line else {many}, time.monotonic() + 20
    while len(os.sched_getaffinity(0)) != wanted and time.monotonic() < limit:
        sum(range(10_000))  # busy
    print(sorted(os.sched_getaffinity(0)), flush=True)
"""


def test_a_processor_of_its_own_only_while_busy_and_not_overloaded() -> None:
    ours = sorted(os.sched_getaffinity(0))
    if len(ours) == 1:
        pytest.skip("needs two processors")
    code = MOVING.format(name=f"sits-test-moving-{os.getpid()}", many=len(ours))
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for told, expected in (("calm", ours[:1]), ("overload", ours), ("calm", ours[:1])):
            process.stdin.write(f"{told}\n")
            process.stdin.flush()
            assert process.stdout.readline().strip() == str(expected), told
        process.stdin.close()


class Machine:
    """Clocks for `Pays`, and what it did."""

    def __init__(self) -> None:
        self.now_s = self.used_s = 0.0
        self.overloaded = False
        self.did: list[str] = []
        self.pays = processors.Pays(
            lambda: self.did.append("bind"),
            lambda: self.did.append("free"),
            lambda: self.overloaded,
            lambda: self.now_s,
            lambda: self.used_s,
        )

    def go_on(self, seconds: float, share: float) -> None:
        for _ in range(round(seconds / processors.LOOK_S)):
            self.now_s += processors.LOOK_S
            self.used_s += share * processors.LOOK_S
            self.pays()


def test_a_process_that_has_little_to_do_stays_out_of_the_way() -> None:
    machine = Machine()
    machine.go_on(5.0, processors.BUSY * 0.9)
    assert machine.did == []
    machine.go_on(1.0, 0.5)
    assert machine.did == ["bind"]
    machine.go_on(5.0, processors.IDLE * 1.1)
    assert machine.did == ["bind"], "between the two it stays as it is"
    machine.go_on(10.0, processors.IDLE * 0.5)
    assert machine.did == ["bind", "free"]


def test_pauses_free_nothing() -> None:
    machine = Machine()
    for _ in range(30):
        machine.go_on(1.0, 0.5)
        machine.go_on(1.0, 0.0)
    assert machine.did == ["bind"]


def test_under_overload_everybody_may_run_everywhere_until_it_is_calm_again() -> None:
    machine = Machine()
    machine.go_on(1.0, 1.0)
    machine.overloaded = True
    machine.go_on(0.3, 1.0)
    assert machine.did == ["bind", "free"], "soon"
    machine.go_on(10.0, 1.0)
    machine.overloaded = False
    machine.go_on(0.3, 1.0)
    assert machine.did == ["bind", "free"]
    machine.go_on(1.0, 1.0)
    assert machine.did == ["bind", "free", "bind"]


def test_a_single_refusal_now_and_then_is_no_overload() -> None:
    machine = Machine()
    machine.go_on(1.0, 1.0)
    for _ in range(30):
        machine.overloaded = True
        machine.go_on(processors.LOOK_S, 1.0)
        machine.overloaded = False
        machine.go_on(1.0, 1.0)
    assert machine.did == ["bind"]


def test_what_could_not_be_done_is_tried_again() -> None:
    tried: list[int] = []

    def bind() -> None:
        tried.append(1)
        if len(tried) == 1:
            raise OSError("not now")

    now = iter(range(1, 100))
    pays = processors.Pays(
        bind, lambda: None, lambda: False, lambda: 0.1 * next(now), lambda: 0.1 * next(now)
    )
    while not tried:
        with contextlib.suppress(OSError):
            pays()
    for _ in range(5):
        pays()
    assert len(tried) == 2


def test_threads_that_end_meanwhile_do_not_disturb() -> None:
    over = threading.Event()

    def churn() -> None:
        while not over.is_set():
            threading.Thread(target=lambda: None).start()

    cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    churning = threading.Thread(target=churn)
    churning.start()
    try:
        for _ in range(500):
            PythonThreads(cpus, "SITS_X", native="nobody").start()
    finally:
        over.set()
        churning.join()
