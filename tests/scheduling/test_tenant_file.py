"""The tenants' file: what it may say, and what is said about a wrong one."""

import math
from collections import Counter

import pytest

from sits_scheduling.entry import Entry
from sits_scheduling.orders import Fifo
from sits_scheduling.queueing import WorkQueue
from sits_scheduling.quotas import Quota
from sits_scheduling.tenant_file import TenantsError, parse_tenants, standard_tenants
from sits_scheduling.tenants import Tier


def test_a_file_gives_tiers_and_quotas() -> None:
    tenants = parse_tenants(
        '{"tenants": {"search": {"tier": "gold", "rate_per_s": 500, "burst": 50, '
        '"max_waiting": 200}}, "default": {"tier": "silver", "max_waiting": 3}}'
    )
    assert tenants.of("search").tier is Tier.GOLD
    assert tenants.of("search").quota == Quota(500.0, 50.0, 200.0)
    assert tenants.of("nobody").tier is Tier.SILVER
    assert tenants.of("nobody").quota == Quota(max_waiting=3.0)


def test_the_tiers_are_tenants_unless_the_file_says_otherwise() -> None:
    for tenants in (standard_tenants(), parse_tenants("{}")):
        assert [tenants.of(tier.name.lower()).tier for tier in Tier] == list(Tier)
        assert tenants.of("gold").quota.rate_per_s == math.inf
    limited = parse_tenants('{"tenants": {"bronze": {"tier": "bronze", "max_waiting": 2}}}')
    assert limited.of("bronze").quota.max_waiting == 2
    assert limited.of("gold").tier is Tier.GOLD


def test_unknown_names_share_one_flow() -> None:
    queue: WorkQueue[str] = WorkQueue(Fifo(), standard_tenants(), 1.0)
    for number in range(60):
        queue.add(Entry("made up", 1, 0, number, tenant=f"made-up-{number}"))
        queue.add(Entry("bronze", 1, 0, number, tenant="bronze"))
    served = Counter(entry.item for _ in range(60) if (entry := queue.take()) is not None)
    assert served == {"bronze": 30, "made up": 30}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "expected JSON"),
        ("[]", "the file: expected an object, got []"),
        ('{"tenant": {}}', "the file: expected the fields tenants, default, got 'tenant'"),
        ('{"tenants": []}', "tenants: expected an object, got []"),
        ('{"tenants": {"A b": {}}}', "tenants: expected names of"),
        ('{"tenants": {"other": {"tier": "gold"}}}', "and not 'other', got 'other'"),
        ('{"tenants": {"a": {}}}', "tenants.a.tier: expected one of gold, silver, bronze, got not"),
        ('{"tenants": {"a": {"tier": "Gold"}}}', "tenants.a.tier: expected one of gold"),
        ('{"tenants": {"a": {"tier": "gold", "rate": 1}}}', "tenants.a: expected the fields tier"),
        ('{"tenants": {"a": {"tier": "gold", "burst": "9"}}}', "tenants.a.burst: expected a num"),
        ('{"default": {"max_waiting": -1}}', "default.max_waiting: expected a number from 0, got"),
        ('{"default": {"burst": true}}', "default.burst: expected a number from 0, got True"),
        ('{"default": {"burst": NaN}}', "default.burst: expected a number from 0, got nan"),
        ('{"default": {"rate_per_s": 0}}', "default.rate_per_s: expected more than 0"),
    ],
)  # fmt: skip
def test_errors_name_the_field_what_was_expected_and_what_came(text: str, says: str) -> None:
    with pytest.raises(TenantsError) as caught:
        parse_tenants(text)
    assert says in str(caught.value)
