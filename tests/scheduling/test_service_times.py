"""Predicted run times follow what was measured, by size, by instance and by quantile."""

import random

import pytest

from sits_scheduling.service_times import ServiceTimes

MS = 1_000_000
SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64)


def true_ns(rows: int, speed: float = 1.0) -> float:
    return (2 * MS + 0.3 * MS * rows) * speed


def learnt(speeds: dict[str, float], runs: int = 6000, spread: float = 0.1) -> ServiceTimes:
    rng = random.Random(3)
    times = ServiceTimes()
    for _ in range(runs):
        instance, rows = rng.choice(list(speeds)), rng.choice(SIZES)
        took = true_ns(rows, speeds[instance]) * rng.lognormvariate(0, spread)
        times.observe("m/1", rows, instance, took)
    return times


def test_nothing_is_known_before_the_first_run() -> None:
    times = ServiceTimes()
    assert times.expected_ns("m/1", 8) == times.quantile_ns("m/1", 8) == 0.0
    assert times.speed("m/1", "a") == 1.0


def test_one_size_says_something_about_all_sizes() -> None:
    times = ServiceTimes()
    times.observe("m/1", 8, "a", 4 * MS)
    assert times.expected_ns("m/1", 8, "a") == pytest.approx(4 * MS)
    assert times.expected_ns("m/1", 1, "a") == pytest.approx(4 * MS)
    assert times.expected_ns("m/1", 16, "a") == pytest.approx(8 * MS)


def test_two_sizes_give_a_line() -> None:
    times = ServiceTimes()
    for _ in range(30):
        times.observe("m/1", 1, "a", true_ns(1))
        times.observe("m/1", 64, "a", true_ns(64))
    assert times.expected_ns("m/1", 32, "a") == pytest.approx(true_ns(32), rel=0.05)
    assert times.expected_ns("m/1", 256, "a") == pytest.approx(true_ns(256), rel=0.05)


def test_stragglers_and_fast_instances_are_told_apart() -> None:
    speeds = {f"i{n}": 1.0 for n in range(8)} | {"slow": 4.0, "fast": 0.5}
    times = learnt(speeds)
    for instance, speed in speeds.items():
        for rows in SIZES:
            expected = times.expected_ns("m/1", rows, instance)
            assert expected == pytest.approx(true_ns(rows, speed), rel=0.15)


def test_a_curve_that_bends_is_followed_by_bucket() -> None:
    times = ServiceTimes()
    steps = {1: 5 * MS, 4: 5 * MS, 16: 6 * MS, 64: 30 * MS}
    for _ in range(200):
        for rows, took in steps.items():
            times.observe("m/1", rows, "a", took)
    for rows, took in steps.items():
        assert times.expected_ns("m/1", rows, "a") == pytest.approx(took, rel=0.1)


@pytest.mark.parametrize(("quantile", "least", "most"), [(0.5, 0.3, 0.7), (0.95, 0.88, 1.0)])
def test_a_quantile_covers_its_part_of_the_runs(quantile: float, least: float, most: float) -> None:
    times = learnt({"a": 1.0, "b": 1.0}, spread=0.3)
    limit = times.quantile_ns("m/1", 32, quantile, "a")
    rng = random.Random(4)
    below = sum(true_ns(32) * rng.lognormvariate(0, 0.3) < limit for _ in range(4000)) / 4000
    assert least <= below <= most


def test_a_change_of_speed_is_followed_within_a_hundred_runs() -> None:
    times = learnt({"a": 1.0, "b": 1.0})
    for _ in range(100):
        times.observe("m/1", 32, "a", true_ns(32, 3.0))
        times.observe("m/1", 32, "b", true_ns(32))
    assert times.expected_ns("m/1", 32, "a") == pytest.approx(true_ns(32, 3.0), rel=0.1)
    assert times.expected_ns("m/1", 32, "b") == pytest.approx(true_ns(32), rel=0.15)


def test_one_absurd_stamp_does_not_take_an_instance_out() -> None:
    times = learnt({"a": 1.0, "b": 1.0})
    times.observe("m/1", 32, "a", 3600e9)
    assert times.speed("m/1", "a") < 3.0
    for _ in range(200):
        times.observe("m/1", 32, "a", true_ns(32))
    assert times.expected_ns("m/1", 32, "a") < 3 * true_ns(32)


def test_an_instance_that_left_is_forgotten() -> None:
    times = learnt({"a": 1.0, "slow": 4.0})
    times.forget("slow")
    assert times.speed("m/1", "slow") == 1.0
