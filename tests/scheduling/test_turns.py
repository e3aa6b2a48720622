"""Tenants take turns among queues too: what may not share a run is no way past the others."""

from collections import Counter

import pytest

from sits_scheduling.batching import BatchPolicy, BatchQueue, CloseReason
from sits_scheduling.entry import Entry
from sits_scheduling.orders import Fifo
from sits_scheduling.tenants import Tenant, Tenants, Tier
from sits_scheduling.turns import Turns

TIERS = Tenants([Tenant("gold", Tier.GOLD), Tenant("silver", Tier.SILVER), Tenant("bronze")])
ROWS = 8


class Several:
    """Queues by name, from which one batch after the other is taken."""

    def __init__(self, run_ns_of: tuple[float, float] = (0.0, 0.0)) -> None:
        self.turns = Turns(TIERS)
        self.queues: dict[str, BatchQueue[str]] = {}
        self._fixed_ns, self._row_ns = run_ns_of
        self._waiting: dict[int, Entry[str]] = {}
        self._came = 0

    def add(self, queue: str, tenant: str, count: int = 1) -> None:
        own = self.queues.setdefault(queue, BatchQueue(BatchPolicy(ROWS), Fifo(), TIERS))
        self.turns.came(tenant)
        for _ in range(count):
            self._came += 1
            own.add(Entry(tenant, 1, 0, self._came, tenant=tenant))

    def serve(self) -> Counter[str]:
        """Who was in the next batch."""
        name = min((n for n, q in self.queues.items() if len(q)), key=self._key)
        turn, _ = self._key(name)
        batch = self.queues[name].take(CloseReason.IDLE)
        entries = [Entry(tenant, 1, 0, self._came, tenant=tenant) for tenant in batch.items]
        run_ns = self._fixed_ns + self._row_ns * batch.rows
        self.turns.took(turn, entries, run_ns, self._came)
        return Counter(batch.items)

    def _key(self, name: str) -> tuple[float, int]:
        return self.turns.key(self.queues[name])


def test_who_comes_last_does_not_wait_for_all_the_queues_of_another() -> None:
    several = Several()
    for number in range(100):
        several.add(f"shape {number}", "bronze", ROWS)
    several.add("another shape", "gold")
    served = several.serve() + several.serve()
    assert served["gold"] == 1


@pytest.mark.parametrize("queues", [1, 5])
def test_tenants_with_queues_of_their_own_get_their_weights_shares(queues: int) -> None:
    several = Several()
    for tenant in ("bronze", "silver", "gold"):
        for number in range(queues):
            several.add(f"{tenant} {number}", tenant, 1200 // queues)
    served: Counter[str] = sum((several.serve() for _ in range(180)), Counter())
    total = served.total()
    for tenant, weight in (("gold", 3), ("silver", 2), ("bronze", 1)):
        assert served[tenant] / total == pytest.approx(weight / 6, rel=0.05)


def test_many_small_runs_are_charged_what_they_take() -> None:
    """A run of one row takes as long as one of eight: by rows, bronze would get most time."""
    several = Several(run_ns_of=(10e6, 0.0))
    for number in range(300):
        several.add(f"bronze {number}", "bronze")
    several.add("gold", "gold", 300 * ROWS)
    runs: Counter[str] = Counter()
    for _ in range(200):
        (tenant,) = several.serve()
        runs[tenant] += 1
    assert runs["gold"] / runs.total() == pytest.approx(3 / 4, rel=0.05)


def test_of_one_tenants_queues_the_one_that_waits_longest_is_next() -> None:
    several = Several()
    for queue, count in (("a", 1), ("b", ROWS), ("a", 1)):
        several.add(queue, "gold", count)
    assert [several.serve().total() for _ in range(2)] == [2, ROWS]


def test_who_was_away_has_saved_nothing_up() -> None:
    several = Several()
    for number in range(60):
        several.add(f"bronze {number}", "bronze", ROWS)
        several.add(f"silver {number}", "silver", ROWS)
    for _ in range(60):
        several.serve()
    several.add("gold a", "gold", 100 * ROWS)
    served: Counter[str] = sum((several.serve() for _ in range(30)), Counter())
    assert served["gold"] / served.total() == pytest.approx(3 / 6, abs=0.05)


def test_what_goes_before_new_work_is_counted_over_all_queues() -> None:
    several = Several()
    for number in range(100):
        several.add(f"bronze {number}", "bronze", ROWS)
    several.add("a", "gold", 5)
    several.add("b", "silver", 1)
    ahead = several.turns.cost_ahead(several.queues.values(), "gold", 1.0)
    assert ahead == 5 + 6 / 3 + 1  # its own, bronze's share meanwhile, all of silver
    assert several.turns.cost_ahead(several.queues.values(), "bronze", 1.0) == 800 + 5 + 1
