"""What a service sets of its process, seen from inside of one."""

import gc
import os
import subprocess
import sys

import pytest

from sits_core import tuning
from sits_core.settings import SettingsError

SHOW = """
import ctypes, gc, sys
from sits_core.tuning import tune
tune({environ!r})
libc = ctypes.CDLL(None)
print(sys.getswitchinterval(), libc.prctl(30), gc.get_threshold()[0])
"""


class FakeLibc:
    """Keeps what was set."""

    def __init__(self) -> None:
        self.set: dict[int, int] = {}

    def mallopt(self, option: int, value: int) -> int:
        self.set[option] = value
        return 1


@pytest.fixture
def restored():
    before, thresholds = sys.getswitchinterval(), gc.get_threshold()
    yield
    sys.setswitchinterval(before)
    gc.set_threshold(*thresholds)


def test_threads_hand_over_soon_timers_are_exact_and_requests_are_not_collected() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHOW.format(environ={})], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["0.0005", "1", "50000"]


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize(
    ("environ", "options"),
    [({}, 3), ({"MALLOC_ARENA_MAX": "2"}, 0), ({"GLIBC_TUNABLES": "glibc.malloc.mxfast=0"}, 0)],
)
def test_an_operators_malloc_settings_stay(environ: dict[str, str], options: int) -> None:
    libc = FakeLibc()
    tuning.tune(environ, libc)  # type: ignore[arg-type]
    assert len(libc.set) == options


def test_glibc_takes_every_value() -> None:
    """It ignores, and tells by 0, what is out of its range."""
    code = (
        "import ctypes; from sits_core import tuning as t; libc = ctypes.CDLL(None)\n"
        "print([libc.mallopt(o, v) for o, v in ((t._M_ARENA_MAX, 1),"
        " (t._M_MMAP_THRESHOLD, t.MMAP_THRESHOLD_BYTES),"
        " (t._M_TRIM_THRESHOLD, t.TRIM_THRESHOLD_BYTES))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    if "mallopt" in done.stderr:
        pytest.skip("not glibc")
    assert done.stdout.strip() == "[1, 1, 1]"


PINNED = """
import os, threading
from sits_core.tuning import pin
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
from sits_core.tuning import pin_python
seen, go = [], threading.Event()
def look():
    go.wait()
    seen.append(os.sched_getaffinity(0))
old = threading.Thread(target=look)
old.start()
pin_python({cpus!r}, "SITS_X")
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
        tuning.pin_python("4000", "SITS_X")


def test_processors_that_are_not_there_are_a_wrong_setting() -> None:
    with pytest.raises(SettingsError, match="SITS_CPUS=4000-4003"):
        tuning.pin("4000-4003")
