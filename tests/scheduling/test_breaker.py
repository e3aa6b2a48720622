"""Breakers open for faults only, probe within their limit, and close again (BRK-01, BAT-05)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits_scheduling.breaker import Breaker, BreakerPolicy, Breakers, Permit, State
from sits_scheduling.outcomes import Outcome, classify

RESET = 5_000_000_000
POLICY = BreakerPolicy(faults=3, reset_ns=RESET, probes=2)


def permitted(breaker: Breaker, now: int = 0) -> Permit:
    permit = breaker.permit(now)
    assert permit is not None
    return permit


def tripped(at: int = 0) -> Breaker:
    breaker = Breaker(POLICY)
    for _ in range(POLICY.faults):
        permitted(breaker, at).end(Outcome.FAULT, at)
    assert breaker.snapshot().state is State.OPEN
    return breaker


def reaching(breaker: Breaker, now: int, requests: int = 50) -> list[Permit]:
    """What of a burst gets to the executor."""
    return [p for p in (breaker.permit(now) for _ in range(requests)) if p is not None]


@pytest.mark.parametrize(
    ("code", "reason", "outcome"),
    [
        (0, "", Outcome.SUCCESS),
        (3, "", Outcome.CLIENT_ERROR),
        (5, "", Outcome.CLIENT_ERROR),
        (12, "", Outcome.CLIENT_ERROR),
        (8, "", Outcome.BACK_PRESSURE),
        (14, "QUEUE_FULL", Outcome.BACK_PRESSURE),
        (14, "DRAINING", Outcome.BACK_PRESSURE),
        (14, "", Outcome.FAULT),
        (13, "", Outcome.FAULT),
        (13, "DEVICE_LOST", Outcome.CLIENT_ERROR),
        (14, "DEVICE_LOST", Outcome.FAULT),
        (4, "", Outcome.LATE),
        (1, "", Outcome.CANCELLED),
    ],
)
def test_only_transport_and_server_errors_are_faults(
    code: int, reason: str, outcome: Outcome
) -> None:
    assert classify(code, reason) is outcome


@pytest.mark.parametrize(
    "neutral",
    [Outcome.CLIENT_ERROR, Outcome.BACK_PRESSURE, Outcome.CANCELLED, Outcome.LATE],
)
def test_neutral_ends_neither_open_a_breaker_nor_clear_its_count(neutral: Outcome) -> None:
    breaker = Breaker(POLICY)
    for _ in range(100):
        permitted(breaker).end(neutral, 0)
    assert breaker.snapshot() == (State.CLOSED, 0, 0, 0)
    for outcome in (Outcome.FAULT, neutral, Outcome.FAULT, neutral, Outcome.FAULT):
        permitted(breaker).end(outcome, 0)
    assert breaker.snapshot().state is State.OPEN


def test_bad_input_of_one_client_does_not_count_against_the_executor() -> None:
    breaker = Breaker(POLICY)
    for _ in range(1000):
        permitted(breaker).end(classify(3), 0)
        permitted(breaker).end(classify(0), 0)
    assert breaker.snapshot() == (State.CLOSED, 0, 0, 0)


def test_a_success_clears_the_count() -> None:
    breaker = Breaker(POLICY)
    for outcome in (Outcome.FAULT, Outcome.FAULT, Outcome.SUCCESS, Outcome.FAULT, Outcome.FAULT):
        permitted(breaker).end(outcome, 0)
    assert breaker.snapshot().state is State.CLOSED


def test_an_open_breaker_lets_nothing_through_before_the_reset_time() -> None:
    assert reaching(tripped(), RESET - 1) == []


@pytest.mark.parametrize("ending", [*Outcome, None])
def test_probes_never_exceed_the_limit_and_every_end_frees_the_slot(
    ending: Outcome | None,
) -> None:
    """BRK-01: cancelled, late, refused, or hanging (None); then 50 requests at once."""
    breaker = tripped()
    first = reaching(breaker, RESET)
    assert len(first) == POLICY.probes
    assert all(permit.probe for permit in first)
    assert reaching(breaker, RESET + 1) == []
    now = RESET + 2
    if ending is None:
        assert reaching(breaker, 2 * RESET - 1) == []
        now = 2 * RESET
    else:
        first[0].end(ending, now)
    second = reaching(breaker, now)
    if ending is Outcome.SUCCESS:
        assert len(second) == 50
    elif ending is Outcome.FAULT:
        assert second == []
        assert len(reaching(breaker, now + RESET)) == POLICY.probes
    else:
        assert len(second) == (2 if ending is None else 1)


def test_the_breaker_closes_within_one_reset_time_after_the_executor_is_well() -> None:
    breaker = tripped()
    hanging = reaching(breaker, RESET)
    well_from = RESET + 1
    closed_at = None
    for now in range(well_from, well_from + RESET + 1, RESET // 100):
        due = breaker.next_probe_ns(now)
        if due is not None and due <= now:
            permitted(breaker, now).end(Outcome.SUCCESS, now)
        if breaker.snapshot().state is State.CLOSED:
            closed_at = now
            break
    assert closed_at is not None
    assert closed_at - well_from <= RESET
    hanging[0].end(Outcome.FAULT, closed_at + 1)
    assert breaker.snapshot().state is State.CLOSED, "a probe of another time says nothing"


def test_recovery_does_not_wait_for_traffic() -> None:
    breaker = tripped()
    assert breaker.next_probe_ns(0) == RESET
    hanging = permitted(breaker, RESET), permitted(breaker, RESET + 5)
    assert breaker.next_probe_ns(RESET + 6) == 2 * RESET
    hanging[1].end(Outcome.CANCELLED, RESET + 7)
    assert breaker.next_probe_ns(RESET + 8) == RESET + 8
    hanging[0].end(Outcome.SUCCESS, RESET + 9)
    assert breaker.next_probe_ns(RESET + 10) is None


def test_what_was_sent_before_it_opened_says_nothing_about_recovery() -> None:
    breaker = Breaker(POLICY)
    early = permitted(breaker)
    for _ in range(POLICY.faults):
        permitted(breaker).end(Outcome.FAULT, 0)
    permitted(breaker, RESET)
    early.end(Outcome.SUCCESS, RESET + 1)
    assert breaker.snapshot().state is State.HALF_OPEN


def test_ending_a_permit_twice_counts_once() -> None:
    breaker = Breaker(POLICY)
    permit = permitted(breaker)
    permit.end(Outcome.FAULT, 0)
    permit.end(Outcome.FAULT, 0)
    assert breaker.snapshot().faults == 1


@given(
    st.lists(
        st.tuples(
            st.integers(0, RESET),
            st.sampled_from(["ask", "end", "drop"]),
            st.sampled_from(list(Outcome)),
        ),
        max_size=120,
    )
)
def test_no_history_breaks_the_probe_limit_or_blocks_for_ever(
    steps: list[tuple[int, str, Outcome]],
) -> None:
    breaker, now = Breaker(POLICY), 0
    out: list[Permit] = []
    for passed, step, outcome in steps:
        now += passed
        if step == "ask" and (permit := breaker.permit(now)) is not None:
            out.append(permit)
        elif step == "end" and out:
            out.pop(0).end(outcome, now)
        elif step == "drop" and out:
            out.pop(0)  # its owner is gone, nobody will ever end it
        assert breaker.snapshot().probes_out <= POLICY.probes
    assert breaker.permit(now + RESET) is not None


def test_placements_leave_out_blocked_executors_only() -> None:
    breakers = Breakers(POLICY)
    for _ in range(POLICY.faults):
        for executor, outcome in (("bad", Outcome.FAULT), ("good", Outcome.SUCCESS)):
            permit = breakers.permit(executor, 0)
            assert permit is not None
            permit.end(outcome, 0)
    assert (breakers.blocked(0), breakers.due(0)) == (["bad"], [])
    assert (breakers.blocked(RESET), breakers.due(RESET)) == ([], ["bad"])
    assert breakers.snapshots()["bad"].state is State.OPEN
    probe = breakers.permit("bad", RESET)
    assert probe is not None
    assert breakers.snapshots()["bad"].state is State.HALF_OPEN
    probe.end(Outcome.SUCCESS, RESET)
    assert (breakers.blocked(0), breakers.due(RESET)) == ([], [])


def test_an_executor_that_left_is_forgotten_even_by_what_it_still_owes() -> None:
    breakers = Breakers(BreakerPolicy(faults=1))
    permit = breakers.permit("gone", 0)
    breakers.forget("gone")
    assert permit is not None
    permit.end(Outcome.FAULT, 0)
    assert (breakers.blocked(0), breakers.snapshots()) == ([], {})
