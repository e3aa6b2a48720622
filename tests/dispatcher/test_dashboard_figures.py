"""Rates, quantiles and shares from counters of several processes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits_dispatcher.dashboard.tenants import objectives, tenants
from sits_dispatcher.dashboard.tracks import (
    Bucket,
    Track,
    Tracks,
    buckets,
    quantile,
    summed,
    within,
)

S = 1_000_000_000
REQUESTS, SECONDS = "sits_requests_total", "sits_request_seconds_bucket"
KEY = (REQUESTS, "gold", "OK")


def tracks(*points: tuple[str, float, float]) -> Tracks:
    """Of processes that counted `KEY`: (id, second, value)."""
    made = Tracks()
    for id_, second, value in points:
        made.add(id_, int(second * S), {KEY: value})
    return made


def test_a_rate_is_growth_over_the_time_between_two_looks() -> None:
    assert tracks(("a", 0, 100), ("a", 2, 130)).rates(60) == (2.0, {KEY: 15.0})


def test_what_was_seen_once_has_no_rate() -> None:
    assert tracks(("a", 0, 100)).rates(60) == (0.0, {})


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.floats(0.001, 30), st.integers(0, 100)), max_size=40
    ),
    st.floats(0.1, 60),
)
def test_no_rate_is_negative_whatever_counters_do(
    looks: list[tuple[str, float, int]], window_s: float
) -> None:
    """Also when a process starts anew under its old name, and counts from 0."""
    second, points = 0.0, []
    for id_, later_s, value in looks:
        second += later_s
        points.append((id_, second, float(value)))
    assert all(rate >= 0 for rate in tracks(*points).rates(window_s)[1].values())


def test_rates_of_processes_add_up_each_over_its_own_time() -> None:
    both = tracks(("a", 0, 0), ("b", 5, 100), ("a", 10, 50), ("b", 10, 110))
    assert both.rates(60) == (10.0, {KEY: 5.0 + 2.0})


def test_a_counter_that_appears_later_grew_from_nothing() -> None:
    track = Track()
    track.add(0, {})
    track.add(4 * S, {KEY: 8.0})
    assert track.growth(60 * S) == (4 * S, {KEY: 8.0})


def test_a_counter_that_fell_began_anew() -> None:
    assert tracks(("a", 0, 100), ("a", 2, 30)).rates(60)[1] == {KEY: 15.0}


def test_a_process_that_left_counts_no_more() -> None:
    both = tracks(("a", 0, 0), ("a", 1, 10), ("b", 0, 0), ("b", 1, 20))
    both.keep({"b"})
    assert both.rates(60)[1] == {KEY: 20.0}
    assert both.totals() == {KEY: 20.0}


def test_the_window_is_kept_though_points_are_few() -> None:
    """Looked at every second for five minutes, a counter that grows by one a second."""
    made = tracks(*(("a", second, second) for second in range(300)))
    for window_s in (5, 60):
        seconds, rates = made.rates(window_s)
        assert window_s <= seconds <= window_s + 5
        assert rates[KEY] == pytest.approx(1.0)


def test_samples_are_summed_over_labels_that_do_not_matter() -> None:
    told = [
        (REQUESTS, {"model": "a", "tenant": "gold", "outcome": "OK"}, 2.0),
        (REQUESTS, {"model": "b", "tenant": "gold", "outcome": "OK"}, 3.0),
        ("sits_unheard_of_total", {}, 9.0),
    ]
    assert summed(told) == {KEY: 5.0}


HISTOGRAM = [Bucket(0.1, 50.0), Bucket(0.2, 90.0), Bucket(1.0, 99.0), Bucket(math.inf, 100.0)]


@pytest.mark.parametrize(
    ("share", "seconds"),
    [(0.25, 0.05), (0.5, 0.1), (0.7, 0.15), (0.9, 0.2), (0.945, 0.6), (1, 1.0)],
)  # fmt: skip
def test_a_quantile_lies_inside_its_bucket(share: float, seconds: float) -> None:
    assert quantile(HISTOGRAM, share) == pytest.approx(seconds)


def test_nothing_has_no_quantile() -> None:
    assert quantile([], 0.5) is None
    assert quantile([Bucket(0.1, 0.0), Bucket(math.inf, 0.0)], 0.5) is None


@pytest.mark.parametrize(
    ("limit_s", "count"), [(0.1, 50), (0.15, 70), (0.2, 90), (1.0, 99), (5.0, 99), (0.05, 25)]
)
def test_what_lies_within_a_limit_is_exact_at_bounds(limit_s: float, count: float) -> None:
    assert within(HISTOGRAM, limit_s) == pytest.approx(count)


def test_histograms_of_tenants_are_told_apart_and_summed() -> None:
    rates = {(SECONDS, "gold", "0.1"): 1.0, (SECONDS, "gold", "+Inf"): 2.0,
             (SECONDS, "bronze", "+Inf"): 4.0}  # fmt: skip
    assert buckets(rates, SECONDS, "gold") == [Bucket(0.1, 1.0), Bucket(math.inf, 2.0)]
    assert buckets(rates, SECONDS)[-1] == Bucket(math.inf, 6.0)


# tenants


def counted(tenant: str, outcomes: dict[str, float], fast: float) -> dict[tuple[str, ...], float]:
    """`fast` of a tenant's requests took up to 0.1 s, the others up to 1 s."""
    total = sum(outcomes.values())
    rates: dict[tuple[str, ...], float] = {
        (REQUESTS, tenant, outcome): rate for outcome, rate in outcomes.items()
    }
    bounds = {"0.1": fast, "1.0": total, "+Inf": total}
    return rates | {(SECONDS, tenant, upto): count for upto, count in bounds.items()}


@pytest.mark.parametrize(
    ("outcomes", "fast", "share"),
    [
        ({"OK": 10.0}, 10.0, 1.0),
        ({"OK": 10.0}, 9.0, 0.9),
        # A refusal comes quickly, and is no success for that.
        ({"OK": 8.0, "UNAVAILABLE": 2.0}, 10.0, 0.8),
        # What came too late is missed once, not twice.
        ({"OK": 8.0, "DEADLINE_EXCEEDED": 2.0}, 8.0, 0.8),
        # What the client did wrong is nobody else's miss.
        ({"OK": 8.0, "INVALID_ARGUMENT": 2.0}, 10.0, 1.0),
        ({"INVALID_ARGUMENT": 2.0}, 2.0, None),
    ],
)
def test_the_share_in_time_counts_what_the_mesh_is_to_blame_for(
    outcomes: dict[str, float], fast: float, share: float | None
) -> None:
    (found,) = tenants(counted("gold", outcomes, fast), {"gold": 100.0})
    assert found.in_slo == (None if share is None else pytest.approx(share))


def test_a_tenant_without_an_objective_has_no_share_unless_all_others_have_one() -> None:
    rates = counted("acme", {"OK": 1.0}, 1.0)
    (plain,) = tenants(rates, {})
    assert (plain.slo_ms, plain.in_slo, plain.requests_per_s) == (None, None, 1.0)
    (judged,) = tenants(rates, objectives("*=100"))
    assert (judged.slo_ms, judged.in_slo) == (100.0, 1.0)


def test_tenants_with_an_objective_are_shown_before_they_ask_for_anything() -> None:
    found = tenants(counted("acme", {"OK": 1.0}, 1.0), objectives("bronze=1000,gold=200.5"))
    assert [(t.tenant, t.slo_ms) for t in found] == [
        ("gold", 200.5), ("bronze", 1000.0), ("acme", None),
    ]  # fmt: skip


def test_no_objectives_is_an_empty_text() -> None:
    assert objectives("") == {}
