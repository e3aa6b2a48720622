"""Extra attempts are bounded, and only made where they can help."""

from sits_scheduling.outcomes import Outcome
from sits_scheduling.outliers import OutlierPolicy, Outliers
from sits_scheduling.retries import Budget, Hedging, Retries

S = 1_000_000_000


def test_retries_stay_a_tenth_of_the_requests_when_everything_fails() -> None:
    budget = Budget(ratio=0.1, per_s=0.0)
    retries = Retries(budget)
    made = 0
    for _ in range(1000):
        budget.request()
        made += retries.allow(Outcome.FAULT, 1, S, 0, 0)
    assert 99 <= made <= 101


def test_a_quiet_mesh_may_retry_too() -> None:
    budget = Budget(ratio=0.1, per_s=1.0)
    assert [budget.spend(S), budget.spend(S), budget.spend(2 * S)] == [True, False, True]


def test_savings_are_bounded() -> None:
    budget = Budget(ratio=1.0, per_s=0.0, most=3.0)
    for _ in range(100):
        budget.request()
    assert [budget.spend(S) for _ in range(5)] == [True, True, True, False, False]


def test_only_faults_and_full_queues_are_tried_again() -> None:
    retries = Retries(Budget(per_s=100.0))
    again = {o for o in Outcome if retries.allow(o, 1, S, 0, 0)}
    assert again == {Outcome.FAULT, Outcome.BACK_PRESSURE}


def test_no_retry_after_two_or_past_what_the_deadline_leaves() -> None:
    retries = Retries(Budget(per_s=100.0))
    assert retries.allow(Outcome.FAULT, 2, S, 2 * S, 0.5 * S)
    assert not retries.allow(Outcome.FAULT, 3, S, 2 * S, 0.5 * S)
    assert not retries.allow(Outcome.FAULT, 1, S, 2 * S, 1.5 * S)


def test_a_hedge_goes_to_an_idle_executor_within_budget_and_deadline() -> None:
    hedging = Hedging(Budget(per_s=2.0))
    assert hedging.due_ns(S, 0.2 * S, 0.3 * S) == 1.5 * S
    assert not hedging.allow(S, 0, 0.1 * S, idle_elsewhere=0)
    assert not hedging.allow(S, S + 1, 0.1 * S, idle_elsewhere=3)
    assert hedging.allow(S, 0, 0.1 * S, idle_elsewhere=1)
    assert hedging.allow(S, 0, 0.1 * S, idle_elsewhere=1)
    assert not hedging.allow(S, 0, 0.1 * S, idle_elsewhere=1)


def watched(executors: int = 10, results: int = 50, **bad: Outcome | float) -> Outliers:
    outliers = Outliers()
    for number in range(executors):
        for result in range(results):
            name = f"e{number}"
            odd = bad.get(name, 1.0)
            fault = isinstance(odd, Outcome) and result % 2 == 0
            slow = odd if isinstance(odd, float) else 1.0
            outliers.observe(name, Outcome.FAULT if fault else Outcome.SUCCESS, slow)
    return outliers


def test_an_executor_that_fails_every_other_request_is_taken_out() -> None:
    outliers = watched(e3=Outcome.FAULT)
    (ejection,) = outliers.evaluate(S)
    assert (ejection.executor, outliers.ejected(S)) == ("e3", ["e3"])
    assert "faults" in ejection.cause
    assert outliers.ejected(ejection.until_ns) == []


def test_a_straggler_is_taken_out_by_its_times() -> None:
    (ejection,) = watched(e7=5.0).evaluate(S)
    assert ejection.executor == "e7"
    assert "predicted time" in ejection.cause


def test_equals_are_never_outliers() -> None:
    assert watched().evaluate(S) == []


def test_client_errors_make_nobody_an_outlier() -> None:
    outliers = watched()
    for _ in range(1000):
        outliers.observe("e0", Outcome.CLIENT_ERROR)
        outliers.observe("e0", Outcome.BACK_PRESSURE)
    assert outliers.evaluate(S) == []


def test_never_more_than_a_fifth_is_out() -> None:
    outliers = watched(e1=9.0, e2=8.0, e3=7.0, e4=6.0)
    assert [e.executor for e in outliers.evaluate(S)] == ["e1", "e2"]
    assert outliers.evaluate(S) == []


def test_without_others_to_compare_with_nobody_is_out() -> None:
    assert watched(executors=2, e0=Outcome.FAULT).evaluate(S) == []


def test_each_time_out_lasts_longer_and_starts_from_a_clean_record() -> None:
    outliers, policy = watched(e0=9.0), OutlierPolicy()
    (first,) = outliers.evaluate(0)
    assert first.until_ns == policy.base_ns
    assert outliers.evaluate(first.until_ns) == []
    for _ in range(50):
        outliers.observe("e0", Outcome.SUCCESS, 9.0)
    (second,) = outliers.evaluate(first.until_ns)
    assert second.until_ns - first.until_ns == 2 * policy.base_ns
