"""Waiting work leaves exactly once, in the order in force, whatever is switched or removed."""

import gc
import random
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits_scheduling.entry import Entry
from sits_scheduling.orders import ORDERS, Deadline, Fifo, Priority
from sits_scheduling.queueing import WorkQueue
from sits_scheduling.tenants import Tenant, Tenants, Tier

MS = 1_000_000


def entry(name: str, at: int = 0, deadline: int = 0, priority: int = 2) -> Entry[str]:
    return Entry(name, 1, 10, at, deadline, priority)


def drain(queue: WorkQueue[str]) -> list[str]:
    taken = []
    while (found := queue.take()) is not None:
        taken.append(found.item)
    return taken


def filled(order: str) -> WorkQueue[str]:
    queue: WorkQueue[str] = WorkQueue(ORDERS[order]())
    queue.add(entry("patient", at=0, deadline=900 * MS))
    queue.add(entry("pressed", at=1 * MS, deadline=50 * MS))
    queue.add(entry("urgent", at=2 * MS, deadline=500 * MS, priority=1))
    return queue


def test_each_order_decides_what_goes_first() -> None:
    assert drain(filled("fifo")) == ["patient", "pressed", "urgent"]
    assert drain(filled("deadline")) == ["pressed", "urgent", "patient"]
    assert drain(filled("priority")) == ["urgent", "patient", "pressed"]


def test_equal_keys_go_in_arrival_order() -> None:
    queue: WorkQueue[str] = WorkQueue(Fifo())
    for name in "abc":
        queue.add(entry(name))
    assert drain(queue) == ["a", "b", "c"]


def test_low_priority_is_overtaken_only_for_its_level_times_the_step() -> None:
    order = Priority(step_ns=10 * MS)
    low = entry("low", at=0, priority=3)
    assert order.key(entry("urgent", at=19 * MS, priority=1)) < order.key(low)
    assert order.key(entry("urgent", at=21 * MS, priority=1)) > order.key(low)


def test_work_without_a_deadline_is_not_starved_by_work_with_one() -> None:
    order = Deadline(patience_ns=100 * MS)
    patient = entry("patient", at=0)
    assert order.key(patient) < order.key(entry("later", at=60 * MS, deadline=110 * MS))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "take", "remove", "switch", "back", "hopeless"]),
            st.integers(0, 5),
            st.sampled_from(["a", "b", "c"]),
        ),
        max_size=120,
    )
)
def test_every_entry_leaves_exactly_once_whatever_happens(
    steps: list[tuple[str, int, str]],
) -> None:
    tenants = Tenants([Tenant("a", Tier.GOLD), Tenant("b", Tier.SILVER)])
    queue: WorkQueue[int] = WorkQueue(Fifo(), tenants, 4.0)
    waiting: list[Entry[int]] = []
    left: list[int] = []
    orders = sorted(ORDERS)
    for now, (step, number, tenant) in enumerate(steps):
        if step == "add":
            made = Entry(now, 1 + number, 1, now, now + 5 * number, 1 + number, tenant)
            queue.add(made)
            waiting.append(made)
        elif step == "take" and (taken := queue.take(now)) is not None:
            left.append(taken.item)
        elif step == "remove" and waiting:
            gone = waiting[number % len(waiting)]
            if queue.remove(gone):
                left.append(gone.item)
        elif step == "back" and waiting and not (again := waiting[number % len(waiting)]).queued:
            left.remove(again.item)
            queue.add(again)
        elif step == "switch":
            queue.set_order(ORDERS[orders[number % len(orders)]]())
        elif step == "hopeless":
            left += [late.item for late in queue.hopeless(now)]
        assert queue.rows == sum(e.rows for e in waiting if e.queued)
        assert sorted(e.item for e in queue.entries()) == sorted(
            e.item for e in waiting if e.queued
        )
    while (taken := queue.take()) is not None:
        left.append(taken.item)
    assert sorted(left) == sorted(e.item for e in waiting)
    assert (len(queue), queue.rows, queue.payload_bytes, queue.urgent) == (0, 0, 0, 0)
    assert queue.waiting_cost() == 0


def test_switching_the_order_keeps_what_waits() -> None:
    queue = filled("fifo")
    queue.set_order(Deadline())
    assert drain(queue) == ["pressed", "urgent", "patient"]


def test_hopeless_work_is_taken_out_before_it_wastes_an_instance() -> None:
    queue = filled("fifo")
    assert [e.item for e in queue.hopeless(45 * MS, service_ns=10 * MS)] == ["pressed"]
    assert drain(queue) == ["patient", "urgent"]


def test_the_oldest_and_the_earliest_deadline_are_of_what_still_waits() -> None:
    queue: WorkQueue[str] = WorkQueue(Deadline())
    first, second = entry("first", at=1, deadline=9), entry("second", at=2, deadline=50)
    queue.add(first)
    queue.add(second)
    assert (queue.oldest_ns(), queue.earliest_deadline_ns()) == (1, 9)
    queue.remove(first)
    assert (queue.oldest_ns(), queue.earliest_deadline_ns()) == (2, 50)


def test_removed_work_does_not_pile_up_behind_a_stuck_head() -> None:
    queue: WorkQueue[int] = WorkQueue(Fifo())
    queue.add(Entry(-1, 1, 1, 0))
    for number in range(10_000):
        made = Entry(number, 1, 1, 1, deadline_ns=5)
        queue.add(made)
        queue.remove(made)
    assert len(queue) == 1
    held = queue._lanes["other"].heap, queue._arrivals, queue._deadlines
    assert all(len(kept) < 200 for kept in held)


@pytest.mark.parametrize("seed", range(30))
def test_a_batch_is_what_taking_one_by_one_gives(seed: int) -> None:
    rng = random.Random(seed)
    tenants = Tenants([Tenant("gold", Tier.GOLD), Tenant("silver", Tier.SILVER)])
    queues = [WorkQueue[int](Priority(), tenants, 8.0) for _ in range(2)]
    most_rows, most_bytes = rng.choice([0, 4, 9, 1000]), rng.choice([5, 60, 10_000])
    for number in range(60):
        tenant = rng.choice(["gold", "silver", "bronze", "unknown"])
        rows, priority = rng.randint(1, 3), rng.randint(1, 4)
        entries = [Entry(number, rows, 10 * rows, number, 0, priority, tenant) for _ in queues]
        for queue, entry in zip(queues, entries, strict=True):
            queue.add(entry)
        if rng.random() < 0.1:
            for queue, entry in zip(queues, entries, strict=True):
                queue.remove(entry)
        if rng.random() < 0.2:
            whole = queues[0].rows <= most_rows and queues[0].payload_bytes <= most_bytes
            together = [e.item for e in queues[0].take_batch(most_rows, most_bytes, number)]
            apart = one_by_one(queues[1], most_rows, most_bytes, number)
            assert (set(together) == set(apart)) if whole else (together == apart)
        left, right = queues
        assert (left.rows, left.payload_bytes, left.urgent, len(left)) == (
            right.rows, right.payload_bytes, right.urgent, len(right),
        )  # fmt: skip
        assert [e.item for e in left.entries()] == [e.item for e in right.entries()]


def one_by_one(queue: WorkQueue[int], most_rows: int, most_bytes: int, now: int) -> list[int]:
    taken: list[int] = []
    rows = size = 0
    while (entry := queue.first(now)) is not None:
        rows, size = rows + entry.rows, size + entry.payload_bytes
        if taken and (rows > most_rows or size > most_bytes):
            break
        queue.take(now)
        taken.append(entry.item)
    return taken


def test_what_left_together_is_kept_by_nothing() -> None:
    queue: WorkQueue[object] = WorkQueue(Fifo())
    items = [Holder() for _ in range(5)]
    for item in items:
        queue.add(Entry(item, 1, 1, 0, 9))
    references = [weakref.ref(item) for item in items]
    queue.take_batch(100, 100)
    del items, item
    gc.collect()
    assert [reference() for reference in references] == [None] * 5


class Holder:
    """Something that can be referred to weakly."""


def test_a_queue_is_as_good_as_new_once_nothing_waits_and_nothing_is_remembered() -> None:
    queue: WorkQueue[str] = WorkQueue(Fifo())
    assert queue.fresh
    first, second = entry("a", deadline=9), entry("b")
    queue.add(first)
    queue.add(second)
    assert not queue.fresh
    queue.remove(second)
    queue.remove(first)
    assert not len(queue)
    assert not queue.fresh, "what was taken out is remembered until it surfaces"
    queue.add(entry("c"))
    queue.take_batch(8, 1 << 20)
    assert queue.fresh


def test_a_queue_that_many_tenants_used_is_not_as_good_as_new() -> None:
    tenants = Tenants([Tenant(f"t{n}") for n in range(9)])
    queue: WorkQueue[int] = WorkQueue(Fifo(), tenants)
    for number in range(9):
        queue.add(Entry(number, 1, 1, 0, tenant=f"t{number}"))
    queue.take_batch(9, 1 << 20)
    assert not len(queue)
    assert not queue.fresh
