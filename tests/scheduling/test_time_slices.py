"""Shares follow the load when it has moved, and are the best ones for it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits_scheduling.time_slices import TimeSlices, best_shares, cost, whole_shares


def test_nothing_moves_while_the_load_does_not() -> None:
    slices = TimeSlices(2)
    assert not any(slices.look([0.45, 0.45]) for _ in range(50))
    assert slices.shares.tolist() == [0.5, 0.5]


def test_one_odd_period_changes_nothing() -> None:
    slices = TimeSlices(2)
    looks = [slices.look([0.4, 0.4]) for _ in range(5)]
    looks += [slices.look(loads) for loads in ([0.8, 0.1], [0.4, 0.4], [0.4, 0.4])]
    assert not any(looks)


def test_a_load_that_has_moved_changes_the_shares_at_the_second_look() -> None:
    slices = TimeSlices(2)
    for _ in range(10):
        slices.look([0.4, 0.4])
    looks = [slices.look([0.7, 0.1]) for _ in range(6)]
    assert looks.index(True) >= 1
    assert slices.shares[0] > 0.6


def test_shares_end_up_made_for_the_new_load_alone_however_the_move_was_mixed() -> None:
    slices = TimeSlices(2)
    for _ in range(10):
        slices.look([0.475, 0.165])
    for _ in range(10):
        slices.look([0.165, 0.475])
    assert slices.shares == pytest.approx(best_shares(np.array([0.165, 0.475])))


def test_shares_add_up_to_the_device_and_leave_nobody_out() -> None:
    for loads in ([0.0, 0.9], [0.3, 0.3, 0.3], [2.0, 1.0], [0.0, 0.0]):
        shares = best_shares(np.array(loads))
        assert shares.sum() == pytest.approx(1.0)
        assert shares.min() > 0


def test_overload_makes_all_wait_equally() -> None:
    assert best_shares(np.array([1.2, 0.6])) == pytest.approx([2 / 3, 1 / 3])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0.02, 0.5), min_size=2, max_size=5), st.integers(0, 1000))
def test_no_other_shares_are_better_by_more_than_a_hundredth(raw: list[float], seed: int) -> None:
    loads = np.array(raw)
    loads *= min(1.0, 0.9 / loads.sum())
    chosen = cost(best_shares(loads), loads)
    spare = np.random.default_rng(seed).dirichlet(np.ones(len(loads)), 3000)
    others = loads + (1 - loads.sum()) * spare
    assert chosen <= cost(others, loads).min() * 1.01 + 1e-9


def test_equal_shares_are_much_worse_under_uneven_load() -> None:
    loads = np.array([0.42, 0.2, 0.1])
    assert cost(best_shares(loads), loads) < cost(np.array([0.45, 0.275, 0.275]), loads) * 0.6


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8), st.integers(1, 64))
def test_whole_shares_use_everything_and_starve_nobody(raw: list[float], total: int) -> None:
    shares = np.array(raw) / sum(raw)
    counts = whole_shares(shares, total)
    assert counts.sum() == total
    if total >= len(raw):
        assert counts.min() >= 1
        assert np.abs(counts - shares * total).max() <= len(raw)
