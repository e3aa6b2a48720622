"""What is measured of a mesh before it is simulated."""

from dataclasses import replace

import pytest

from sits_bench.calibration import (
    ROWS,
    Calibration,
    Executions,
    Period,
    as_periods,
    between,
    middle,
    total,
)

ALONE = Calibration(
    busy_us={rows: 1000.0 * rows for rows in ROWS},
    lone_us=1500.0,
    gap_us=(100.0, 170.0),
    spread={rows: 2.0 if rows == 1 else 1.0 for rows in ROWS},
)


def test_an_instance_takes_the_run_and_the_gap_after_it() -> None:
    told = ALONE.measured()
    assert told.run_us[1] == 1100.0
    assert told.run_us[2] == pytest.approx(2110.0)
    assert told.run_us[8] == 8170.0
    assert told.run_us[32] == 32_170.0, "of the largest the gap of eight"
    assert told.way_us == 400.0
    assert told.pace == ()


def test_executions_that_took_longer_under_load_make_all_run_times_longer() -> None:
    seen = {1: Executions(10, 11_000.0), 3: Executions(10, 33_000.0)}
    told = ALONE.under_load([Period(0.0, seen)])
    assert told.run_us[32] == pytest.approx(1.1 * 32_170.0)
    assert told.way_us == 400.0


def test_the_pace_is_that_of_each_period_against_all_of_them() -> None:
    usual, slow = {1: Executions(10, 10_000.0)}, {1: Executions(10, 20_000.0)}
    told = ALONE.under_load([Period(0.0, usual), Period(0.25, {}), Period(0.5, slow)])
    assert told.run_us[1] == pytest.approx(1.5 * 1100.0)
    assert told.pace == (pytest.approx((0.0, 1 / 1.5)), pytest.approx((0.5, 2 / 1.5)))


def test_a_slow_pass_is_no_slow_size() -> None:
    slow = replace(ALONE, busy_us={**ALONE.busy_us, 32: 99_000.0}, gap_us=(100.0, 900.0))
    assert middle([ALONE, slow, ALONE]) == ALONE


def test_a_load_begins_with_the_period_of_its_first_execution() -> None:
    nothing, one, three = {}, {1: Executions(1, 10.0)}, {1: Executions(3, 30.0)}
    looks = [(7.0, nothing), (7.25, nothing), (7.5, one), (7.75, one), (8.0, three)]
    assert as_periods(looks) == [
        Period(0.0, one), Period(0.25, {}), Period(0.5, {1: Executions(2, 20.0)})
    ]  # fmt: skip
    assert as_periods(looks[:2]) == []


def test_all_executions_of_several_periods() -> None:
    found = total([{1: Executions(1, 10.0)}, {1: Executions(2, 30.0), 4: Executions(1, 5.0)}])
    assert found == {1: Executions(3, 40.0), 4: Executions(1, 5.0)}


def test_the_spread_is_that_of_the_sizes_that_were_seen() -> None:
    small, large = Executions(30, 30_000.0), Executions(10, 80_000.0)
    assert ALONE.under_load([Period(0.0, {1: small, 8: large})]).spread == pytest.approx(1.75)
    assert ALONE.under_load([Period(0.0, {1: small})]).spread == 2.0


def test_only_executions_of_the_meantime_count() -> None:
    before = {1: Executions(5, 50.0), 2: Executions(1, 20.0)}
    after = {1: Executions(7, 80.0), 2: Executions(1, 20.0), 4: Executions(1, 40.0)}
    assert between(before, after) == {1: Executions(2, 30.0), 4: Executions(1, 40.0)}
