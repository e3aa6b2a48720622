"""What a service sets of its process, seen from inside of one."""

import gc
import subprocess
import sys

import pytest

from sits_core import tuning

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
