"""Who may fill a queue, and how fast, once it is no longer short (P5)."""

import pytest

from sits_preprocess.producers import Producers
from sits_preprocess.request import Request
from sits_scheduling.tenant_file import standard_tenants

MS = 1_000_000
MAX_QUEUE = 64
LOW, HIGH = 24, 48
TENANTS = ("gold", "silver", "bronze")


def by(tenant: str) -> Request:
    return Request(lambda _result: None, model="m", version="1", tenant=tenant)


def taken(producers: Producers, tenant: str, asked: int, waiting: int, now: int) -> int:
    """How many of so many requests at once are taken."""
    count = 0
    for _ in range(asked):
        if producers.judge(by(tenant), waiting, now) is None:
            producers.put(by(tenant))
            count += 1
    return count


@pytest.mark.parametrize("policy", ["fixed_slices", "adaptive_quota"])
def test_a_short_queue_needs_no_sharing(policy: str) -> None:
    producers = Producers(policy, standard_tenants(), MAX_QUEUE)
    assert taken(producers, "bronze", 1000, LOW - 1, 0) == 1000


def test_slices_of_a_millisecond_go_round() -> None:
    producers = Producers("fixed_slices", standard_tenants(), MAX_QUEUE)
    found = {t: [taken(producers, t, 100, LOW, n * MS) for n in range(4)] for t in TENANTS}
    turns = [sum(found[t][n] > 0 for t in TENANTS) for n in range(4)]
    assert sorted(turns) == [0, 1, 1, 1], "the fourth turn is that of the unknown"
    assert {max(counts) for counts in found.values()} == {HIGH}
    refusal = producers.judge(by("gold"), LOW, 10 * MS)
    assert refusal is None or refusal.retry_after_ms == 4, "a whole round at most"


def test_quotas_halve_at_the_high_mark_and_are_the_same_for_all() -> None:
    producers = Producers("adaptive_quota", standard_tenants(), MAX_QUEUE)
    first = [taken(producers, t, 100, LOW, 10 * MS) for t in TENANTS]
    assert first == [12, 12, 12], "a quarter of the high mark"
    assert [taken(producers, t, 100, HIGH, 20 * MS) for t in TENANTS] == [6, 6, 6]
    refusal = producers.judge(by("gold"), HIGH, 20 * MS)
    assert refusal is not None
    assert (refusal.reason.value, refusal.retry_after_ms) == ("PRODUCER_RATE_EXCEEDED", 10)


def test_quotas_grow_while_the_queue_is_short() -> None:
    producers = Producers("adaptive_quota", standard_tenants(), MAX_QUEUE)
    for period in range(1, 9):
        producers.judge(by("gold"), LOW - 1, period * 10 * MS)
    assert taken(producers, "gold", 100, LOW, 90 * MS) == 20


def test_names_that_nobody_knows_share_one_quota() -> None:
    producers = Producers("adaptive_quota", standard_tenants(), MAX_QUEUE)
    assert sum(taken(producers, f"invented {n}", 100, LOW, 10 * MS) for n in range(5)) == 12
