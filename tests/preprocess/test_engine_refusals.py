"""What the engine refuses at once, and what it foresees of the next requests."""

from collections.abc import Iterator

import pytest

from sits_core.clock import Deadline, now_ns
from sits_core.errors import (
    DeadlineExceeded,
    ResourceExhausted,
    Unavailable,
)
from sits_preprocess.request import Request
from sits_preprocess.testing_engine import LONG_NS, Busy, World
from sits_protos.v1.link_pb2 import (
    Credit,
    Credits,
    LinkMessage,
)
from sits_scheduling.quotas import Quota
from sits_scheduling.tenants import Tenant, Tenants, Tier


def test_a_full_queue_refuses_at_once() -> None:
    world = World(preprocess_max_queue=2)
    world.link(window=1)
    for name in ("running", "q1", "q2"):
        world.submit(name)
    world.submit("q3")
    assert "Exceeds maximum queue size" in str(world.error("q3"))
    world.engine.stop()


def test_after_a_refusal_others_are_foreseen_until_there_is_room_again() -> None:
    world = World(preprocess_max_queue=2)
    link = world.link(window=1)
    now = now_ns()
    assert not world.engine.refusing(now)
    for name in ("running", "q1", "q2", "q3"):
        world.submit(name)
    assert world.engine.refusing(now)
    assert not world.engine.refusing(now + 200_000_000)
    unread = Request(lambda _result: None, model="m", version="1")
    error = world.engine.foresee(unread, now)
    assert error is not None
    assert error.reason == "QUEUE_FULL"
    world.complete(link, link.batches[0])
    assert world.engine.foresee(unread, now) is None
    unknown = Request(lambda _result: None, model="nobody", version="1")
    assert world.engine.foresee(unknown, now) is None
    world.engine.stop()


def test_a_look_says_how_much_time_others_need() -> None:
    world = World(max_batch=1)
    link = world.link(window=1)
    for number in range(20):
        world.submit(f"r{number}")
    for _ in range(5):  # what is run for 50 ms each time is learnt
        world.complete(link, link.batches[-1], run_ns=50_000_000)
    now = now_ns()
    unread = world.request("", deadline=Deadline(now + 3_600_000_000_000))
    look = world.engine.look(unread, now)
    assert look.error is None
    assert look.needs.row_ns > 10_000_000
    for less_ns in (-2_000_000, 2_000_000):
        deadline = Deadline(now + int(look.needs.time_ns) + less_ns)
        error = world.engine.foresee(world.request("", deadline=deadline), now)
        assert (error is None) == (less_ns > 0)
    assert world.engine.look(world.request("", deadline=Deadline(now + 1)), now).error is not None
    world.engine.stop()


def test_a_look_at_a_tenant_with_a_quota_is_for_one_and_takes_nothing() -> None:
    slow = Tenant("slow", Tier.GOLD, Quota(rate_per_s=0.001, burst=2.0))
    world = World(tenants=Tenants([slow]))
    world.link(window=1)
    now = now_ns()
    world.submit("first", tenant="slow")
    for _ in range(3):
        look = world.engine.look(world.request("", tenant="slow"), now)
        assert look.each
        assert look.error is None
    world.submit("second", tenant="slow")
    assert world.engine.look(world.request("", tenant="slow"), now).error is not None
    assert not world.engine.look(world.request("", tenant="other"), now).each
    world.engine.stop()


def test_what_was_turned_away_counts_as_refused() -> None:
    world = World()
    now = now_ns()
    assert not world.engine.refusing(now)
    world.engine.turned_away(Unavailable("", reason="DEADLINE_UNREACHABLE"), 3, now)
    assert world.engine.refusing(now)
    registry = world.registry.get_sample_value
    labels = {"reason": "DEADLINE_UNREACHABLE"}
    assert registry("sits_preprocess_refused_total", labels) == 3
    world.engine.stop()


def test_a_tenant_that_fills_the_queue_is_told_to_slow_down() -> None:
    world = World(preprocess_max_queue=64, preprocess_producer_rate="adaptive_quota")
    world.link(window=1)
    for number in range(200):
        world.submit(f"b{number}", tenant="bronze")
    told = [answers[0].error for answers in world.answers.values()]
    assert told
    assert {error.reason for error in told if error} <= {"PRODUCER_RATE_EXCEEDED", "QUEUE_FULL"}
    assert any(e.reason == "PRODUCER_RATE_EXCEEDED" and e.retry_after_ms for e in told if e)
    world.engine.stop()


@pytest.fixture
def busy() -> Iterator[Busy]:
    made = Busy()
    yield made
    made.world.engine.stop()


def test_a_deadline_that_cannot_be_met_is_refused_at_once_and_says_when_to_retry(
    busy: Busy,
) -> None:
    error = busy.error("late", deadline=Deadline.after(15))
    assert isinstance(error, Unavailable)
    assert error.reason == "DEADLINE_UNREACHABLE"
    assert 4_000 < error.retry_after_ms < 10_000
    assert busy.error("patient", deadline=Deadline.after(60)) is None
    assert busy.error("no deadline") is None


def test_quotas_of_tenants_hold_and_say_when_to_retry(busy: Busy) -> None:
    assert [busy.error(f"f{n}", tenant="few") for n in range(2)] == [None, None]
    error = busy.error("f2", tenant="few")
    assert isinstance(error, ResourceExhausted)
    assert (error.reason, error.retry_after_ms) == ("QUOTA_WAITING_EXCEEDED", 50)
    assert busy.error("s0", tenant="slow") is None
    error = busy.error("s1", tenant="slow")
    assert isinstance(error, ResourceExhausted)
    assert (error.reason, error.retry_after_ms) == ("QUOTA_RATE_EXCEEDED", 1_000_000)
    assert busy.error("g", tenant="gold") is None


def test_tiers_are_refused_while_a_dispatcher_says_so(busy: Busy) -> None:
    credit = Credit(model="m", version="1", window=1, instances=1)
    shed = Credits(models=[credit], shed_tiers=["bronze", "a tier of tomorrow"])
    busy.world.tell(busy.link, LinkMessage(credits=shed))
    error = busy.error("b", tenant="bronze")
    assert isinstance(error, Unavailable)
    assert (error.reason, error.retry_after_ms) == ("SHED_UNDER_OVERLOAD", 1_000)
    assert busy.error("g", tenant="gold") is None
    busy.world.credit(busy.link, 1)
    assert busy.error("b2", tenant="bronze") is None


def test_a_dispatcher_that_is_lost_asks_for_nothing_any_more(busy: Busy) -> None:
    busy.world.tell(busy.link, LinkMessage(credits=Credits(shed_tiers=["bronze"], degrade=True)))
    assert busy.error("b", tenant="bronze") is not None
    busy.world.engine.closed(busy.link, "killed")
    assert busy.error("b2", tenant="bronze") is None


def test_what_is_under_way_counts_until_it_is_over_however_it_ends(busy: Busy) -> None:
    def under_way_ns() -> float:
        (gate,) = [b.gate for b in busy.world.engine._queues._batchers.values()]
        return gate.under_way_ns

    assert under_way_ns() == pytest.approx(LONG_NS)
    busy.finish()
    assert under_way_ns() == 0
    busy.world.submit("lost")
    assert under_way_ns() > 0
    busy.world.engine.closed(busy.link, "killed")
    assert under_way_ns() == 0


def test_what_could_start_at_once_but_runs_too_long_is_tried_now_and_then(busy: Busy) -> None:
    """Else an estimate that is wrong would never be corrected."""
    busy.finish()
    assert busy.error("tried", rows=8, deadline=Deadline.after(1)) is None
    busy.finish()
    error = busy.error("again", rows=8, deadline=Deadline.after(1))
    assert isinstance(error, DeadlineExceeded)
    assert error.reason == "DEADLINE_UNREACHABLE"


def test_without_admission_everything_queues() -> None:
    busy = Busy(preprocess_admission=False)
    assert busy.error("late", deadline=Deadline.after(15)) is None
    assert [busy.error(f"f{n}", tenant="few") for n in range(3)] == [None] * 3
    busy.world.engine.stop()
