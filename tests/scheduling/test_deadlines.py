"""What cannot finish in time is refused at once; what can is admitted."""

import random

from sits_scheduling.deadlines import Admission, Load
from sits_scheduling.entry import Entry
from sits_scheduling.orders import Deadline
from sits_scheduling.queueing import WorkQueue
from sits_scheduling.quotas import Reason
from sits_scheduling.tenants import Tier

MS = 1_000_000
IDLE = Load(ahead_ns=0, in_flight_ns=0, parallel=2, idle=2)


def busy(ahead_ms: float, in_flight_ms: float = 0.0, parallel: int = 1) -> Load:
    return Load(ahead_ms * MS, in_flight_ms * MS, parallel, 0)


def test_an_idle_instance_means_no_wait() -> None:
    assert IDLE.wait_ns == 0
    assert Admission(overhead_ns=MS).decide(0, 12 * MS, 10 * MS, IDLE) is None


def test_work_that_cannot_run_in_time_even_alone_is_refused() -> None:
    refusal = Admission(overhead_ns=MS).decide(0, 10 * MS, 10 * MS, IDLE)
    assert refusal is not None
    assert refusal.reason is Reason.DEADLINE
    assert refusal.retry_after_ms == 1


def test_the_refusal_names_the_predicted_wait_and_when_a_retry_may_pass() -> None:
    load = busy(ahead_ms=60, in_flight_ms=20, parallel=2)
    admission = Admission(overhead_ns=0)
    refusal = admission.decide(1000 * MS, 1030 * MS, 10 * MS, load)
    assert refusal is not None
    assert refusal.predicted_wait_ns == 40 * MS
    assert refusal.retry_after_ms == 20
    assert admission.decide(1000 * MS, 1050 * MS, 10 * MS, load) is None


def test_without_a_deadline_only_the_longest_wait_refuses() -> None:
    assert Admission().decide(0, 0, 10 * MS, busy(5000)) is None
    refusal = Admission(max_wait_ns=1000 * MS).decide(0, 0, 10 * MS, busy(5000))
    assert refusal is not None
    assert (refusal.reason, refusal.retry_after_ms) == (Reason.WAIT, 4000)


def test_an_unknown_model_is_admitted() -> None:
    assert Admission().decide(0, 50 * MS, 0.0, IDLE) is None


def test_predicted_waits_are_corrected_by_tier_from_actual_ones() -> None:
    admission = Admission()
    for _ in range(200):
        admission.learn(Tier.BRONZE, busy(100), 300 * MS)
        admission.learn(Tier.GOLD, busy(100), 80 * MS)
    assert abs(admission.predicted_wait_ns(busy(100), Tier.BRONZE) / MS - 300) < 5
    assert abs(admission.predicted_wait_ns(busy(100), Tier.GOLD) / MS - 80) < 5


def test_short_waits_teach_nothing() -> None:
    admission = Admission()
    admission.learn(Tier.GOLD, busy(0.1), 500 * MS)
    assert admission.predicted_wait_ns(busy(100), Tier.GOLD) == 100 * MS


def goodput(admit: bool, offered: float) -> int:
    """One server, 10 ms a request, deadline 50 ms after arrival, EDF; how many are in time."""
    rng, admission = random.Random(5), Admission(overhead_ns=0)
    queue: WorkQueue[int] = WorkQueue(Deadline(), quantum=10.0 * MS)
    now = free = in_time = 0
    for number in range(4000):
        now += int(rng.expovariate(offered / (10 * MS)))
        while free <= now and (entry := queue.take(free)) is not None:
            free = max(free, entry.arrived_ns) + 10 * MS
            in_time += free <= entry.deadline_ns
        free = max(free, now) if not len(queue) else free
        load = Load(queue.waiting_cost(), max(0, free - now), 1, int(free <= now))
        if admit and admission.decide(now, now + 50 * MS, 10 * MS, load):
            continue
        queue.add(Entry(number, 1, 0, now, now + 50 * MS, cost=10.0 * MS))
    return in_time


def test_admission_keeps_goodput_up_where_a_queue_without_it_collapses() -> None:
    with_admission, without = goodput(True, 1.5), goodput(False, 1.5)
    assert with_admission > 0.9 * 4000 / 1.5
    assert with_admission > 5 * without


def test_who_missed_a_deadline_makes_the_next_ones_careful_and_for_long() -> None:
    """A queue that admission fills to its limit must not swing around it."""
    admission, load = Admission(overhead_ns=0), busy(100)
    for _ in range(100):
        admission.learn(Tier.BRONZE, load, 300 * MS)
    for _ in range(100):
        admission.learn(Tier.BRONZE, load, 150 * MS)
    assert abs(admission.predicted_wait_ns(load, Tier.BRONZE) / MS - 150) < 5, "on average"
    assert admission.decide(0, 250 * MS, 0.0, load, Tier.BRONZE) is not None
    assert admission.decide(0, 310 * MS, 0.0, load, Tier.BRONZE) is None
    for _ in range(3000):
        admission.learn(Tier.BRONZE, load, 150 * MS)
    assert admission.decide(0, 160 * MS, 0.0, load, Tier.BRONZE) is None, "but not for ever"


def test_a_tier_that_is_wholly_kept_away_is_let_in_again_although_nobody_teaches() -> None:
    admission, load = Admission(overhead_ns=0), busy(60)
    admission.decide(0, 0, 0.0, load, Tier.GOLD)
    for _ in range(200):
        admission.learn(Tier.GOLD, load, 400 * MS)

    def refused(at_ms: int) -> bool:
        due_ns = (at_ms + 118) * MS
        return admission.decide(at_ms * MS, due_ns, 30.0 * MS, load, Tier.GOLD) is not None

    kept_away = [refused(at_ms) for at_ms in range(1, 1000)]
    assert kept_away[:90] == [True] * 90, "as long as one would have taken"
    assert not all(kept_away[90:450])
