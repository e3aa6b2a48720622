"""The part of gangs' runs that failed, as governance sees it."""

import pytest

from sits_scheduling.collectives import WINDOW_NS, Collectives
from sits_scheduling.signals import RULES, Level

S = 1_000_000_000
T = 1_700_000_000 * S


def test_it_is_the_part_of_the_runs_of_the_last_minute() -> None:
    collectives = Collectives()
    for second in range(50):
        collectives.ran(20, int(second < 2), T + second * S)
    assert collectives.failure(T + 50 * S) == pytest.approx(2 / 1000)
    collectives.ran(20, 2, T + 61 * S)
    assert collectives.failure(T + 61 * S) == pytest.approx(2 / (48 * 20 + 20))


def test_a_single_failure_is_an_accident() -> None:
    collectives = Collectives()
    collectives.ran(1, 1, T)
    assert collectives.failure(T) == 0.0
    collectives.ran(1, 1, T + S)
    assert collectives.failure(T + S) == 1.0


def test_it_is_over_after_a_minute_without_runs() -> None:
    collectives = Collectives()
    collectives.ran(2, 2, T)
    assert collectives.failure(T + WINDOW_NS - 1) == 1.0
    assert collectives.failure(T + WINDOW_NS) == 0.0


def test_gangs_that_do_not_run_do_not_fail() -> None:
    assert Collectives().failure(T) == 0.0


def test_what_is_seen_in_one_second_takes_one_place() -> None:
    collectives = Collectives()
    for _ in range(10_000):
        collectives.ran(1, 0, T)
    assert len(collectives._buckets) == 1


def test_two_failures_among_a_hundred_runs_degrade() -> None:
    collectives = Collectives()
    collectives.ran(100, 2, T)
    found = collectives.failure(T)
    own = [rule for rule in RULES if rule.signal == "collective_failure"]
    above = [rule.level for rule in own if found > rule.enter]
    assert max(above) is Level.DEGRADE
