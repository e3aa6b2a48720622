"""Each scenario in small: it runs, reports in the common form, repeats by seed, and its effect
has the right direction. Whether full-size bars hold is for `sits simulate` to say."""

from dataclasses import replace

import pytest

from sits_scheduling.signals import Level
from sits_scheduling.tenants import Tier
from sits_sim.gang_run import GangTask, run_gangs
from sits_sim.governed import Trouble
from sits_sim.progress import Silent
from sits_sim.scenarios import (
    NAMES,
    Size,
    contention,
    governance,
    jitter,
    scenario,
    tenants,
    thousand,
    timeslice,
)
from sits_sim.serving import (
    FULL,
    NAIVE,
    Job,
    Point,
    batched_per_s,
    run_job,
    unbatched_per_s,
)

GPUS = 16
SLO_S = 0.002


def serving(system: str, load: float, requests: int = 4000) -> Job:
    chosen, most = (FULL, batched_per_s) if system == "full" else (NAIVE, unbatched_per_s)
    return Job(chosen, GPUS, load * most(GPUS), requests, SLO_S, 1)


def test_every_scenario_is_there() -> None:
    assert all(callable(scenario(name)) for name in NAMES)


@pytest.mark.parametrize("name", ["contention", "timeslice"])
def test_a_report_has_the_common_form_and_repeats_by_seed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contention, "DURATION_S", 0.5)
    first, again, other = (
        scenario(name)(Size(seed=seed, scale=0.1, workers=1), Silent()) for seed in (1, 1, 2)
    )
    assert first.as_dict() == again.as_dict()
    assert first.as_dict()["figures"] != other.as_dict()["figures"]
    keys = ["figure", "value", "unit", "reference", "ratio", "bar", "holds"]
    figures = first.as_dict()["figures"]
    assert isinstance(figures, list)
    assert all(list(figure) == keys for figure in figures)
    assert any(figure["bar"] for figure in figures)
    assert first.panels[0].series


def test_results_do_not_depend_on_the_number_of_processes() -> None:
    one, two = (
        timeslice.run(Size(scale=0.1, workers=workers), Silent()).as_dict() for workers in (1, 2)
    )
    assert one == two


def test_the_full_mesh_is_faster_than_the_naive_one_at_its_saturation() -> None:
    naive = run_job(serving("naive", 1.0))
    full = run_job(replace(serving("naive", 1.0), system=FULL))
    assert full.p99_ms < naive.p99_ms / 2
    assert full.attainment > naive.attainment


def test_the_full_mesh_does_several_times_the_naive_ones_work_in_time() -> None:
    naive = max(run_job(serving("naive", load)).goodput_per_s for load in (0.7, 0.9))
    full = run_job(serving("full", 0.9, requests=8_000))
    assert full.goodput_per_s > 4 * naive
    assert full.utilisation > 0.8


def test_placement_by_topology_shortens_collectives_and_evens_loads() -> None:
    chance, aware = (
        run_gangs(GangTask(name, 32, 64.0, 500, 1)) for name in ("random", "topo_aware")
    )
    assert aware.collective_ms < chance.collective_ms / 2.2
    assert aware.load_deviation_ms < chance.load_deviation_ms / 4
    assert aware.in_one_node == 1.0
    assert (chance.requests, chance.gangs) == (aware.requests, aware.gangs)


def test_the_sweep_and_the_jobs_of_the_scenario_thousand_are_all_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(thousand, "FULL_LOADS", (0.5, 0.9))
    monkeypatch.setattr(thousand, "NAIVE_LOADS", (0.6,))
    report = thousand.run(Size(scale=0.002, workers=1), Silent())
    names = [figure.figure for figure in report.figures]
    assert sum("goodput" in name and " at " in name for name in names) == 1 + 2 + 1
    assert report.parameters["gpus"] == GPUS
    assert [len(series.x) for series in report.panels[0].series] == [2, 2]


def test_the_knee_is_the_highest_load_that_is_in_time_and_does_not_pile_up() -> None:
    at_usual = run_job(serving("full", 0.5, requests=500))

    def point(offered_per_s: float, attainment: float, goodput_per_s: float) -> Point:
        return replace(
            at_usual, offered_per_s=offered_per_s, attainment=attainment,
            goodput_per_s=goodput_per_s,
        )  # fmt: skip

    low, high = point(100.0, 1.0, 100.0), point(200.0, 0.995, 199.0)
    piling_up, late = point(300.0, 1.0, 250.0), point(400.0, 0.9, 400.0)
    assert thousand.knee([low, high, piling_up, late]) is high
    assert thousand.best([low, high, piling_up]) is piling_up


def test_gold_is_served_before_silver_before_bronze_beyond_capacity() -> None:
    outcome = tenants.run_job(tenants.Job(tenants.BEYOND, 3.0, 1))
    gold, silver, bronze = (outcome.attainment[tier] for tier in Tier)
    assert gold > 0.99
    assert silver > bronze + 0.1
    assert outcome.refused[Tier.BRONZE] > outcome.refused[Tier.SILVER]
    assert 0.1 < outcome.worst_of_bound <= 1.0


def test_slices_that_follow_the_load_shorten_waits_and_even_the_load() -> None:
    fixed, following = (
        timeslice.run_job(timeslice.Job(adaptive, 1, 40.0)) for adaptive in (False, True)
    )
    assert following.waits_ms.mean() < fixed.waits_ms.mean() / 1.5
    assert following.deviations.mean() < fixed.deviations.mean() / 2


def test_the_quota_gives_requests_their_links_back() -> None:
    alone, without, quota = (
        contention.run_job(contention.Job("", gangs, held, 2, 0.3, 1))
        for gangs, held in ((0, False), (3, False), (3, True))
    )
    assert alone.delay_ms < quota.delay_ms < without.delay_ms / 2
    assert alone.batches_per_s >= quota.batches_per_s > without.batches_per_s
    assert quota.collective_ms > without.collective_ms


def test_jitter_costs_less_throughput_under_control() -> None:
    without, controlled = (jitter.run_job(jitter.Job(60.0, c, 30.0, 1)) for c in (False, True))
    still = jitter.run_job(jitter.Job(0.0, False, 20.0, 1))
    assert without.batches_per_s < controlled.batches_per_s < still.batches_per_s
    assert controlled.seen_deviation_ms == pytest.approx(60, rel=0.1)


@pytest.mark.parametrize(
    ("trouble", "level"),
    [
        (Trouble(failure=0.0006), Level.SCALE_OUT),
        (Trouble(sharing=3), Level.REPLACE),
        (Trouble(failure=0.02), Level.DEGRADE),
    ],
)
def test_trouble_raises_its_level_in_time_once_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, trouble: Trouble, level: Level
) -> None:
    monkeypatch.setattr(governance, "SAMPLES", 90)
    monkeypatch.setattr(governance, "TROUBLE_FROM", 5)
    monkeypatch.setattr(governance, "TROUBLE_TO", 15)
    outcome = governance.run_job(governance.Job("", trouble, 1))
    assert outcome.highest is level
    assert 0 < outcome.late <= governance.WITHIN
    assert (outcome.above, outcome.flaps, outcome.undone) == (0, 0, True)


def test_levels_taken_again_soon_are_seen() -> None:
    up, down = Level.REPLACE, Level.NORMAL
    assert governance.flaps([down, up, up, down, down]) == 0
    assert governance.flaps([down, up, down, up, down]) == 2
    assert governance.flaps([down, up, down, *[down] * 30, up, down]) == 0
