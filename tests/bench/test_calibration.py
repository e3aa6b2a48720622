"""What is measured of a mesh before it is simulated."""

import pytest

from sits_bench.calibration import ROWS, Calibration, Executions, between

ALONE = Calibration(
    busy_us={rows: 1000.0 * rows for rows in ROWS},
    lone_us=1500.0,
    gap_us=(100.0, 410.0),
    spread={rows: 2.0 if rows == 1 else 1.0 for rows in ROWS},
)


def test_an_instance_takes_the_run_and_the_gap_after_it() -> None:
    told = ALONE.measured()
    assert told.run_us[1] == 1100.0
    assert told.run_us[2] == pytest.approx(2110.0)
    assert told.run_us[32] == 32_410.0
    assert told.way_us == 400.0


def test_executions_that_took_longer_under_load_make_all_run_times_longer() -> None:
    seen = {1: Executions(10, 11_000.0), 3: Executions(10, 33_000.0)}
    told = ALONE.measured(seen)
    assert told.run_us[32] == pytest.approx(1.1 * 32_410.0)
    assert told.way_us == 400.0


def test_the_spread_is_that_of_the_sizes_that_were_seen() -> None:
    small, large = Executions(30, 30_000.0), Executions(10, 80_000.0)
    assert ALONE.measured({1: small, 8: large}).spread == pytest.approx(1.75)
    assert ALONE.measured({1: small}).spread == 2.0


def test_only_executions_of_the_meantime_count() -> None:
    before = {1: Executions(5, 50.0), 2: Executions(1, 20.0)}
    after = {1: Executions(7, 80.0), 2: Executions(1, 20.0), 4: Executions(1, 40.0)}
    assert between(before, after) == {1: Executions(2, 30.0), 4: Executions(1, 40.0)}
