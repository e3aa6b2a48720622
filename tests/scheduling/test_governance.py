"""Critical signals raise the right level within three samples, nothing flaps, all is undone."""

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits_scheduling.governance import SHED_PATIENCE, Governor, Plan
from sits_scheduling.knee import DEFAULT_KNEE, Knee
from sits_scheduling.signals import LEAVE_SAMPLES, Level, Sample
from sits_scheduling.tenants import Tier

CALM = Sample()
WORRIES = {
    Level.SCALE_OUT: [
        Sample(queue_median_ms=130), Sample(collective_failure=0.0005), Sample(load_over_knee=1.1),
    ],
    Level.REPLACE: [
        Sample(queue_median_ms=300), Sample(collective_failure=0.002),
        Sample(communication_share=0.45), Sample(memory_spread=0.4, largest_block=0.1),
    ],
    Level.DEGRADE: [Sample(queue_median_ms=600), Sample(collective_failure=0.01)],
}  # fmt: skip
CASES = [(level, sample) for level, samples in WORRIES.items() for sample in samples]


def run(governor: Governor, samples: Iterable[Sample]) -> list[Plan]:
    return [governor.look(sample, now) for now, sample in enumerate(samples)]


@pytest.mark.parametrize(("level", "sample"), CASES)
def test_each_critical_signal_raises_its_level_within_three_samples(
    level: Level, sample: Sample
) -> None:
    governor = Governor()
    plans = run(governor, [CALM, CALM, *[sample] * 3])
    assert plans[1].level is Level.NORMAL
    assert plans[-1].level is level


@pytest.mark.parametrize(("level", "sample"), CASES)
def test_every_step_is_undone_when_the_signal_is_gone(level: Level, sample: Sample) -> None:
    governor = Governor()
    plans = run(governor, [*[sample] * 40, *[CALM] * 40])
    assert plans[39].level is level
    assert plans[-1] == (Level.NORMAL, 1.0, False, 1.0, False, (), False)
    assert governor.events[-1].after is Level.NORMAL


@pytest.mark.parametrize(("level", "sample"), CASES)
def test_a_single_spike_changes_nothing(level: Level, sample: Sample) -> None:
    governor = Governor()
    run(governor, [CALM, sample, CALM, CALM, sample, CALM] * 10)
    assert (governor.level, len(governor.events)) == (Level.NORMAL, 0)


@pytest.mark.parametrize("value", [119.0, 121.0])
def test_a_signal_that_hovers_at_its_limit_changes_at_most_once(value: float) -> None:
    governor = Governor()
    run(governor, (Sample(queue_median_ms=value + (-1) ** n * 5) for n in range(200)))
    assert len(governor.events) <= 1


def test_a_signal_that_comes_back_when_relief_ends_flaps_less_and_less() -> None:
    """The signal is high unless relief is in force; a plain threshold would change every
    few samples, about 60 times."""
    governor, plan = Governor(), Governor().plan()
    for now in range(400):
        relieved = plan.level >= Level.SCALE_OUT
        plan = governor.look(Sample(queue_median_ms=50 if relieved else 200), now)
    assert len(governor.events) <= 24
    gaps = [later.at_ns - earlier.at_ns for earlier, later in pairwise(governor.events)]
    assert max(gaps) >= 40


def test_relief_is_not_taken_away_while_more_is_asked_for_than_the_mesh_can_do() -> None:
    governor = Governor()
    pressing = Sample(queue_median_ms=600, load_over_knee=2.0)
    relieved = Sample(queue_median_ms=0, load_over_knee=2.0)
    plans = run(governor, [pressing] * 3 + [relieved] * 60)
    assert all(plan.level is Level.DEGRADE for plan in plans[2:])
    assert run(governor, [CALM] * 10)[-1].level is Level.NORMAL


@given(st.lists(st.floats(0, 1000), max_size=200))
def test_no_level_is_left_sooner_than_five_samples_after_it_was_entered(
    values: list[float],
) -> None:
    governor = Governor()
    run(governor, (Sample(queue_median_ms=value) for value in values))
    level_changes = [e for e in governor.events if e.before != e.after]
    for earlier, later in pairwise(level_changes):
        if later.after < later.before and earlier.after > earlier.before:
            assert later.at_ns - earlier.at_ns >= LEAVE_SAMPLES


def test_uneven_memory_matters_only_while_free_memory_is_in_pieces() -> None:
    governor = Governor()
    run(governor, [Sample(memory_spread=0.5, largest_block=0.9)] * 10)
    assert governor.level is Level.NORMAL
    plans = run(governor, [Sample(memory_spread=0.5, largest_block=0.1)] * 3)
    assert [plan.level for plan in plans] == [Level.NORMAL, Level.NORMAL, Level.REPLACE]


def test_levels_add_up() -> None:
    governor = Governor()
    first = run(governor, [Sample(queue_median_ms=130)] * 3)[-1]
    assert (first.replace, first.degrade) == (False, False)
    assert 1.0 < first.scale_factor <= 2.0
    second = run(governor, [Sample(queue_median_ms=300)] * 3)[-1]
    assert (second.replace, second.micro_batch_factor, second.degrade) == (True, 0.5, False)
    third = run(governor, [Sample(queue_median_ms=600)] * 3)[-1]
    assert (third.scale_factor, third.replace, third.degrade) == (2.0, True, True)
    assert (third.break_circuits, third.shed) == (True, ())


def test_bronze_is_shed_before_silver_before_gold_and_comes_back_last() -> None:
    governor = Governor()
    plans = run(governor, [Sample(queue_median_ms=700)] * 5 * SHED_PATIENCE)
    steps = [plan.shed for plan in plans]
    bronze, silver, gold = Tier.BRONZE, Tier.SILVER, Tier.GOLD
    assert list(dict.fromkeys(steps)) == [
        (), (bronze,), (bronze, silver), (bronze, silver, gold),
    ]  # fmt: skip
    assert steps[1 + SHED_PATIENCE] == (bronze,)
    back = [plan.shed for plan in run(governor, [CALM] * 20)]
    assert list(dict.fromkeys(back))[-3:] == [(bronze, silver), (bronze,), ()]


def test_shedding_waits_while_what_was_done_already_helps() -> None:
    governor = Governor()
    run(governor, [Sample(queue_median_ms=700)] * (2 + SHED_PATIENCE))
    plans = run(governor, [Sample(queue_median_ms=450)] * 50)
    assert {plan.shed for plan in plans} == {(Tier.BRONZE,)}


def test_every_transition_is_an_event_with_its_cause() -> None:
    governor = Governor()
    run(governor, [Sample(collective_failure=0.002)] * 3 + [CALM] * 10)
    up, down = governor.events
    assert (up.before, up.after) == (Level.NORMAL, Level.REPLACE)
    assert up.cause == "collective_failure 0.002 above 0.0015"
    assert (down.before, down.after) == (Level.REPLACE, Level.NORMAL)
    assert down.cause == "collective_failure 0 below 0.0012"


def test_steps_of_shedding_name_the_signal_that_made_level_3() -> None:
    governor = Governor()
    run(governor, [Sample(queue_median_ms=700)] * (2 + SHED_PATIENCE))
    event = governor.events[-1]
    assert (event.shed, event.cause) == ((Tier.BRONZE,), "queue_median_ms 700 above 500")


def test_the_knee_is_where_p95_leaves_its_calm_level() -> None:
    knee = Knee()
    assert knee.load() == DEFAULT_KNEE
    for _ in range(5):
        for bucket in range(20):
            load = bucket / 20 + 0.01
            knee.observe(load, 10.0 / max(0.05, 1.0 - load))
    assert 0.55 <= knee.load() <= 0.7
    assert knee.over(knee.load() * 1.1) > 1.0


def test_without_a_steep_part_there_is_no_knee() -> None:
    knee = Knee()
    for _ in range(5):
        for bucket in range(20):
            knee.observe(bucket / 20, 10.0 + bucket * 0.1)
    assert knee.load() == DEFAULT_KNEE
