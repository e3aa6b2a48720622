"""When the next instance is free, as front doors expect it."""

from sits_scheduling.batching import Capacity
from sits_scheduling.next_free import NextFree

MS = 1_000_000
ROWS = 8


def after(run_ns: int, now_ns: int) -> NextFree:
    expected = NextFree()
    expected.ran(run_ns, ROWS, now_ns)
    return expected


def test_one_run_after_the_oldest_batch_left_or_after_the_last_answer() -> None:
    expected = after(10 * MS, 100 * MS)
    assert expected.capacity(1, 0, 120 * MS, ROWS, MS) == Capacity(1, 0, 130 * MS, 10 * MS)
    assert expected.capacity(1, 0, 50 * MS, ROWS, MS) == Capacity(1, 0, 110 * MS, 10 * MS)


def test_not_told_while_one_is_idle_or_before_anything_ran() -> None:
    assert after(10 * MS, 100 * MS).capacity(2, 1, 50 * MS, ROWS, MS).next_idle_ns == 0
    assert NextFree().capacity(1, 0, 50 * MS, ROWS, 0).next_idle_ns == 0


def test_not_told_for_runs_shorter_than_the_way_ahead() -> None:
    assert after(MS // 2, 100 * MS).capacity(1, 0, 50 * MS, ROWS, MS).next_idle_ns == 0


def test_runs_are_averaged_and_batches_that_did_not_run_only_tell_the_time() -> None:
    expected = after(10 * MS, 0)
    expected.ran(20 * MS, ROWS, 0)
    expected.ran(0, ROWS, 100 * MS)
    told = expected.capacity(1, 0, 0, ROWS, MS)
    assert told.service_ns == 12 * MS
    assert 110 * MS < told.next_idle_ns < 125 * MS


def test_a_small_batch_is_expected_back_sooner_than_a_large_one() -> None:
    expected = NextFree()
    for _ in range(20):
        expected.ran(15 * MS, 4, 0)
        expected.ran(40 * MS, 12, 0)
    small, large = (expected.capacity(1, 0, 100 * MS, rows, MS) for rows in (4, 12))
    assert 113 * MS < small.next_idle_ns < 117 * MS
    assert 138 * MS < large.next_idle_ns < 142 * MS


def test_runs_that_failed_teach_nothing_and_break_nothing() -> None:
    expected = NextFree()
    expected.ran(40 * MS, 0, 10 * MS)
    assert expected.capacity(1, 0, 5 * MS, ROWS, MS).next_idle_ns == 0
    for _ in range(20):
        expected.ran(10 * MS, ROWS, 20 * MS)
        expected.ran(40 * MS, 0, 100 * MS)
    assert 109 * MS < expected.capacity(1, 0, 50 * MS, ROWS, MS).next_idle_ns < 111 * MS


def test_one_absurd_run_is_soon_forgotten() -> None:
    expected = NextFree()
    for run_ms in [10] * 300 + [10_000] + [10] * 20:
        expected.ran(run_ms * MS, ROWS, 0)
    assert expected.capacity(1, 0, 0, ROWS, MS).next_idle_ns < 60 * MS


def test_runs_that_become_slower_are_believed_after_a_few() -> None:
    expected = NextFree()
    for run_ms in [10] * 200 + [20] * 10:
        expected.ran(run_ms * MS, ROWS, 0)
    assert expected.capacity(1, 0, 0, ROWS, MS).next_idle_ns > 18 * MS
