"""When the next instance is free, as front doors expect it."""

from sits_scheduling.batching import Capacity
from sits_scheduling.next_free import NextFree

MS = 1_000_000


def after(run_ns: int, now_ns: int) -> NextFree:
    expected = NextFree()
    expected.ran(run_ns, now_ns)
    return expected


def test_one_run_after_the_oldest_batch_left_or_after_the_last_answer() -> None:
    expected = after(10 * MS, 100 * MS)
    assert expected.capacity(1, 0, 120 * MS, MS) == Capacity(1, 0, 130 * MS, 10 * MS)
    assert expected.capacity(1, 0, 50 * MS, MS) == Capacity(1, 0, 110 * MS, 10 * MS)


def test_not_told_while_one_is_idle_or_before_anything_ran() -> None:
    assert after(10 * MS, 100 * MS).capacity(2, 1, 50 * MS, MS).next_idle_ns == 0
    assert NextFree().capacity(1, 0, 50 * MS, 0).next_idle_ns == 0


def test_not_told_for_runs_shorter_than_the_way_ahead() -> None:
    assert after(MS // 2, 100 * MS).capacity(1, 0, 50 * MS, MS).next_idle_ns == 0


def test_runs_are_averaged_and_batches_that_did_not_run_only_tell_the_time() -> None:
    expected = after(10 * MS, 0)
    expected.ran(20 * MS, 0)
    expected.ran(0, 100 * MS)
    assert expected.capacity(1, 0, 0, MS).next_idle_ns == 112 * MS
