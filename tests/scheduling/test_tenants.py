"""Tenants get their weights' shares, and nobody waits beyond the bound."""

from hypothesis import given, settings
from hypothesis import strategies as st

from sits_scheduling.entry import Entry
from sits_scheduling.orders import Fifo
from sits_scheduling.queueing import WorkQueue
from sits_scheduling.quotas import Bucket, Quota, Reason
from sits_scheduling.tenants import (
    NS_PER_LEVEL,
    Tenant,
    Tenants,
    Tier,
    charge,
    priority_factor,
)

S = 1_000_000_000
TIERS = Tenants([Tenant("gold", Tier.GOLD), Tenant("silver", Tier.SILVER), Tenant("bronze")])
NAMES = ("gold", "silver", "bronze")


def piece(tenant: str, cost: float = 1.0, priority: int = 1, at: int = 0) -> Entry[str]:
    return Entry(tenant, 1, 0, at, 0, priority, tenant, cost)


def fair(quantum: float = 64.0) -> WorkQueue[str]:
    return WorkQueue(Fifo(), TIERS, quantum)


def served(queue: WorkQueue[str], cost: float, now_ns: int = 0) -> dict[str, float]:
    """What each tenant got out of the next `cost` units."""
    got = dict.fromkeys(NAMES, 0.0)
    while sum(got.values()) < cost and (entry := queue.take(now_ns)) is not None:
        got[entry.tenant] += entry.cost
    return got


def mixes(least: int, most: int) -> st.SearchStrategy[list[list[float]]]:
    sizes = st.lists(st.integers(least, most).map(float), min_size=1, max_size=8)
    return st.lists(sizes, min_size=3, max_size=3)


COSTS = st.one_of(mixes(16, 64), mixes(10_000_000, 40_000_000))
"""Of each tenant's pieces: rows of micro-batches, or predicted nanoseconds."""


@settings(max_examples=40, deadline=None)
@given(COSTS, st.floats(0.02, 1.0))
def test_busy_tenants_get_their_weights_shares_within_5_percent(
    costs: list[list[float]], quantum_part: float
) -> None:
    largest = max(max(mix) for mix in costs)
    queue = fair(quantum_part * largest)
    # Long enough that a whole turn and one piece are less than 5 % of the least share.
    window = 6 * 2 * largest * (1 + quantum_part) / 0.05
    for name, mix in zip(NAMES, costs, strict=True):
        need = 1 + int(window / sum(mix))
        for cost in mix * need:
            queue.add(piece(name, cost))
    got = served(queue, window)
    total = sum(got.values())
    for name, weight in zip(NAMES, (3, 2, 1), strict=True):
        share = weight / 6
        assert abs(got[name] / total - share) <= 0.05 * share


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(NAMES), st.integers(1, 64), st.integers(1, 8), st.booleans()),
        min_size=1,
        max_size=150,
    ),
    st.sampled_from([4.0, 32.0, 64.0, 200.0]),
)
def test_no_piece_waits_beyond_the_bound_whatever_comes(
    events: list[tuple[str, int, int, bool]], quantum: float
) -> None:
    """Arrivals and services in any order; each piece's bound is taken when it arrives."""
    queue = fair(quantum)
    queue.cost_bound("gold", 64.0, 7)  # the largest piece there will be
    promised: dict[int, float] = {}
    done = 0.0

    def serve() -> None:
        nonlocal done
        entry = queue.take()
        if entry is not None:
            assert done <= promised.pop(id(entry)) + 1e-6
            done += entry.cost

    for tenant, cost, priority, busy in events:
        entry = piece(tenant, float(cost), priority)
        promised[id(entry)] = done + queue.cost_bound(tenant, entry.cost, entry.level)
        queue.add(entry)
        if not busy:
            serve()
    while len(queue):
        serve()
    assert promised == {}


def test_a_flood_of_gold_cannot_hold_bronze_beyond_the_bound() -> None:
    queue = fair(quantum=8.0)
    for _ in range(500):
        queue.add(piece("gold", 8.0))
    bound = queue.cost_bound("bronze", 8.0, 0)
    queue.add(piece("bronze", 8.0))
    before = 0.0
    while (entry := queue.take()) is not None and entry.tenant != "bronze":
        before += entry.cost
        queue.add(piece("gold", 8.0))
    assert 0 < before <= bound
    assert bound == (24 + 8) + (16 + 8) + (8 + 8)  # gold, silver and the unknown: Q_j + c each


def test_priority_lowers_a_weight_by_15_percent_a_level() -> None:
    assert [priority_factor(level) for level in (0, 1, 2)] == [1.0, 0.85, 0.7]
    assert priority_factor(99) == 0.1
    queue = fair(quantum=1.0)
    for _ in range(4000):
        queue.add(piece("silver", priority=3))  # weight 2 × 0.7
        queue.add(piece("bronze", priority=1))  # weight 1
    got = served(queue, 2000)
    assert abs(got["silver"] / got["bronze"] - 1.4) < 0.05 * 1.4


def test_spreading_work_over_priorities_gains_no_share() -> None:
    queue = fair(quantum=1.0)
    for number in range(4000):
        queue.add(piece("gold", priority=1 + number % 4))
        queue.add(piece("silver", priority=1))
    got = served(queue, 2000)
    assert got["gold"] / got["silver"] <= 3 / 2


def test_waiting_wears_the_penalty_of_a_priority_off() -> None:
    assert charge(1.0, 3, 0) == 1 / (1 - 0.45)
    assert charge(1.0, 3, 2 * NS_PER_LEVEL) == 1 / 0.85
    assert charge(1.0, 3, 9 * NS_PER_LEVEL) == charge(1.0, 0, 0) == 1.0


def test_age_never_changes_the_weights_of_tenants() -> None:
    queue = fair(quantum=1.0)
    for _ in range(4000):
        queue.add(piece("gold", at=3600 * S))
        queue.add(piece("bronze", at=0))
    got = served(queue, 2000, now_ns=3600 * S)
    assert abs(got["gold"] / got["bronze"] - 3) < 0.05 * 3


def test_unknown_tenants_share_one_flow() -> None:
    queue = fair(quantum=1.0)
    for number in range(2000):
        queue.add(piece(f"invented-{number % 50}"))
        queue.add(piece("bronze"))
    got = [queue.take() for _ in range(1000)]
    bronze = sum(1 for entry in got if entry is not None and entry.tenant == "bronze")
    assert abs(bronze - 500) <= 25


def test_the_expected_wait_counts_what_others_are_served_meanwhile() -> None:
    queue = fair()
    for _ in range(10):
        queue.add(piece("gold", 10.0))
    queue.add(piece("silver", 1.0))
    assert queue.cost_ahead("bronze", 10.0) == 30.0 + 1.0  # 3 × bronze's 10, all of silver
    assert queue.cost_ahead("gold", 10.0) == 100.0 + 1.0


def test_a_rate_quota_refuses_with_the_time_to_wait() -> None:
    bucket = Bucket(Quota(rate_per_s=100.0, burst=10.0))
    assert bucket.admit(10.0, 0.0, 5 * S) is None
    refusal = bucket.admit(5.0, 0.0, 5 * S)
    assert refusal is not None
    assert (refusal.reason, refusal.retry_after_ms) == (Reason.QUOTA_RATE, 50)
    assert bucket.admit(5.0, 0.0, 5 * S + refusal.retry_after_ms * 1_000_000) is None


def test_a_piece_larger_than_the_burst_passes_a_full_bucket_and_delays_the_next() -> None:
    bucket = Bucket(Quota(rate_per_s=100.0, burst=10.0))
    assert bucket.admit(30.0, 0.0, S) is None
    refusal = bucket.admit(1.0, 0.0, S)
    assert refusal is not None
    assert refusal.retry_after_ms == 210


def test_a_waiting_quota_bounds_what_one_tenant_queues() -> None:
    bucket = Bucket(Quota(max_waiting=64.0))
    assert bucket.admit(8.0, 56.0, 0) is None
    refusal = bucket.admit(8.0, 57.0, 0)
    assert refusal is not None
    assert refusal.reason is Reason.QUOTA_WAITING
