"""Memory that large messages left behind goes back to the system while the process is idle."""

import ctypes
from collections.abc import Iterator

import pytest

from sits_core import memory
from sits_core.memory import KEPT_BYTES, Trimmer, free_bytes

BLOCK_BYTES = 60_000

libc = ctypes.CDLL(None)
pytestmark = pytest.mark.skipif(not hasattr(libc, "mallinfo2"), reason="needs glibc 2.33")


@pytest.fixture
def hole() -> Iterator[None]:
    """Twice as much as may be kept was used in small blocks, of which the last one lives on."""
    libc.malloc.restype = ctypes.c_void_p
    count = 2 * KEPT_BYTES // BLOCK_BYTES
    blocks = [ctypes.c_void_p(libc.malloc(BLOCK_BYTES)) for _ in range(count)]
    for block in blocks:
        ctypes.memset(block, 1, BLOCK_BYTES)
    for block in blocks[:-1]:
        libc.free(block)
    yield
    libc.free(blocks[-1])


def resident_bytes() -> int:
    with open("/proc/self/status") as status:
        return int(status.read().partition("RssAnon:")[2].split()[0]) * 1024


@pytest.mark.usefixtures("hole")
def test_an_idle_process_gives_back() -> None:
    before = resident_bytes()
    assert free_bytes() > KEPT_BYTES
    times = iter([0.0, 5.0])
    Trimmer(lambda: next(times), lambda: 1.0)()
    assert resident_bytes() < before - KEPT_BYTES


@pytest.mark.usefixtures("hole")
def test_a_busy_process_keeps_what_it_will_need_again() -> None:
    before = resident_bytes()
    times, used = iter([0.0, 5.0]), iter([0.0, 2.0])
    Trimmer(lambda: next(times), lambda: next(used))()
    assert resident_bytes() > before - KEPT_BYTES // 2


def test_where_glibc_does_not_tell_nothing_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: object())
    assert free_bytes() == 0
    Trimmer()()
