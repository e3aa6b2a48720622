"""A request is judged before it queues: tier, deadline, quota; and what came of it is learnt."""

from typing import NamedTuple

import pytest

from sits_scheduling.batching import BatchPolicy, BatchQueue
from sits_scheduling.deadlines import Admission
from sits_scheduling.entry import Entry
from sits_scheduling.gate import Gate
from sits_scheduling.quotas import Quota, Reason
from sits_scheduling.service_times import ServiceTimes
from sits_scheduling.tenants import Tenant, Tenants, Tier

MS = 1_000_000
ROWS = 8
RUN_NS = 10 * MS


class Capacity(NamedTuple):
    parallel: int = 1
    idle: int = 0


BUSY, IDLE = Capacity(1, 0), Capacity(1, 1)


class World:
    """One model whose batches of 8 rows take 10 ms."""

    def __init__(self, *tenants: Tenant) -> None:
        self.tenants = Tenants(tenants)
        self.queue: BatchQueue[str] = BatchQueue(BatchPolicy(ROWS), tenants=self.tenants)
        times = ServiceTimes()
        for _ in range(50):
            times.observe("m/1", ROWS, "e", RUN_NS)
        self.gate = Gate("m/1", self.tenants, times, Admission(overhead_ns=0))

    def judge(
        self, tenant: str = "", deadline: int = 0, room: Capacity = BUSY, rows: int = 1
    ) -> Reason | None:
        entry = Entry("r", rows, 1, 0, deadline, tenant=tenant)
        refusal = self.gate.judge(entry, self.queue, room, ROWS, now_ns=0)
        if refusal is None:
            self.queue.add(entry)
        return refusal.reason if refusal else None


def test_a_request_that_fits_is_admitted_and_one_that_does_not_is_refused() -> None:
    world = World()
    assert world.judge(deadline=11 * MS, room=IDLE) is None
    for _ in range(39):
        world.judge()
    # 40 rows wait: five batches of 10 ms, then its own.
    assert world.judge(deadline=59 * MS) is Reason.DEADLINE
    assert world.judge(deadline=62 * MS) is None


def test_batches_under_way_count_until_their_results_are_back() -> None:
    world = World()
    expected = world.gate.sent(ROWS)
    assert expected == pytest.approx(RUN_NS)
    assert world.judge(deadline=15 * MS) is Reason.DEADLINE
    world.gate.returned([], ROWS, "e", expected, RUN_NS, now_ns=10 * MS)
    assert world.judge(deadline=15 * MS) is None


def test_shed_tiers_are_refused_first() -> None:
    world = World(Tenant("gold", Tier.GOLD))
    world.gate.shed = (Tier.BRONZE,)
    assert world.judge("anybody", room=IDLE) is Reason.SHED
    assert world.judge("gold", room=IDLE) is None


def test_quotas_count_what_is_admitted_only() -> None:
    world = World(Tenant("small", Tier.GOLD, Quota(max_waiting=2.0)),
                  Tenant("slow", Tier.GOLD, Quota(rate_per_s=10.0, burst=2.0)))  # fmt: skip
    assert [world.judge("small") for _ in range(3)] == [None, None, Reason.QUOTA_WAITING]
    assert world.judge("slow", deadline=1) is Reason.DEADLINE
    assert [world.judge("slow") for _ in range(3)] == [None, None, Reason.QUOTA_RATE]


def test_waits_that_were_longer_than_predicted_are_learnt() -> None:
    world = World()
    for _ in range(80):
        world.judge()
    for entry in list(world.queue.entries()) * 5:
        world.gate.gave_up(entry, now_ns=int(3 * entry.judged_wait_ns))
    # 80 rows are 100 ms; three times that is what comes of it.
    assert world.judge(deadline=250 * MS) is Reason.DEADLINE
    assert world.judge(deadline=330 * MS) is None


def test_a_deadline_beyond_what_is_sure_is_never_refused_by_time() -> None:
    world = World()
    for waiting in (0, 1, 7, 100, 5000):
        for room in (BUSY, IDLE, Capacity(3, 0)):
            sure_ns = int(world.gate.surely_ns(waiting, room, ROWS))
            while world.queue.rows < waiting:
                world.queue.add(Entry("w", 1, 1, 0))
            assert world.judge(deadline=sure_ns, room=room) is None
