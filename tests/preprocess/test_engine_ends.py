"""Every request the engine takes is answered exactly once, whatever happens around it."""

import gc
import weakref
from collections.abc import Sequence

import pytest

from sits_core.clock import Deadline, now_ns
from sits_core.errors import (
    Cancelled,
    DeadlineExceeded,
    Unavailable,
)
from sits_core.testing import wait_until
from sits_preprocess import batch_message
from sits_preprocess.batch_message import Put
from sits_preprocess.dispatch_link import Sent
from sits_preprocess.request import Request
from sits_preprocess.testing_engine import World, names


def test_a_deadline_is_answered_when_it_passes_and_the_executor_is_told(world: World) -> None:
    link = world.link()
    world.submit("slow", deadline=Deadline.after(0.05))
    wait_until(lambda: "slow" in world.answers)
    assert isinstance(world.error("slow"), DeadlineExceeded)
    assert link.cancels[0].cancel.batch_id == link.batches[0].batch.batch_id
    world.complete(link, link.batches[0])
    assert len(world.answers["slow"]) == 1


def test_a_queued_request_that_expires_is_never_sent(world: World) -> None:
    link = world.link(window=1)
    world.submit("running")
    world.submit("queued", deadline=Deadline.after(0.02))
    wait_until(lambda: "queued" in world.answers)
    world.complete(link, link.batches[0])
    assert [names(b) for b in link.batches] == [["running"]]


def test_an_expired_request_is_refused_before_it_is_queued(world: World) -> None:
    world.link()
    world.submit("late", deadline=Deadline(now_ns() - 1))
    assert isinstance(world.error("late"), DeadlineExceeded)
    assert world.engine.open_requests() == 0


def test_a_cancelled_request_is_answered_once_and_never_sent(world: World) -> None:
    link = world.link(window=1)
    world.submit("running")
    request = world.submit("queued")
    world.engine.cancel(request)
    world.engine.cancel(request)
    assert isinstance(world.error("queued"), Cancelled)
    world.complete(link, link.batches[0])
    assert len(link.batches) == 1


def test_who_gives_up_while_a_batch_is_built_is_cancelled_behind_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dispatcher forgets a cancel that comes before its batch, and would run it."""
    link, build = world.link(), batch_message.build

    def slow(sent: Sent, requests: Sequence[Request], put: Put) -> batch_message.Built:
        for request in requests:
            world.engine.cancel(request)
        return build(sent, requests, put)

    monkeypatch.setattr(batch_message, "build", slow)
    world.submit("a")
    assert isinstance(world.error("a"), Cancelled)
    batch, cancel = link.sent[-2:]
    assert cancel.cancel.batch_id == batch.batch.batch_id
    assert list(cancel.cancel.requests) == [0]


def test_a_lost_dispatchers_batches_are_sent_again_when_it_is_back(world: World) -> None:
    link = world.link()
    world.submit("a")
    world.engine.closed(link, "killed")
    world.submit("b")
    again = world.link(process="d2")
    assert [names(b) for b in again.batches] == [["a"]]
    world.complete(again, again.batches[0])
    world.complete(again, again.batches[1])
    assert world.data("a") == b"a..."
    assert world.data("b") == b"b..."


def test_a_lost_dispatchers_batches_go_to_another_one_at_once(world: World) -> None:
    first, second = world.link(), world.link(process="d2", peer="dispatcher:2")
    world.submit("a")
    holder, other = (first, second) if first.batches else (second, first)
    world.engine.closed(holder, "killed")
    assert [names(b) for b in other.batches] == [["a"]]


def test_a_batch_is_not_sent_for_ever(world: World) -> None:
    link = world.link()
    world.submit("a")
    for life in range(3):
        world.engine.closed(link, "killed")
        link = world.link(process=f"d{life + 2}")
    assert isinstance(world.error("a"), Unavailable)
    assert link.batches == []


def test_work_that_nobody_serves_is_refused_after_a_while(world: World) -> None:
    link = world.link()
    world.credit(link, 0)
    world.submit("a")
    wait_until(lambda: "a" in world.answers)
    assert isinstance(world.error("a"), Unavailable)


def test_draining_refuses_new_requests_and_finishes_accepted_ones(world: World) -> None:
    link = world.link()
    world.submit("a")
    world.engine.drain()
    world.submit("b")
    assert "shutting down" in str(world.error("b"))
    world.complete(link, link.batches[0])
    assert world.data("a") == b"a..."


def test_random_cancels_deadlines_and_losses_leave_no_request_unanswered(world: World) -> None:
    link = world.link(window=4, instances=2)
    requests = [
        world.submit(f"r{n}", deadline=Deadline.after(0.001 * (n % 50 + 1)) if n % 3 else None)
        for n in range(200)
    ]
    for number, request in enumerate(requests):
        if number % 5 == 0:
            world.engine.cancel(request)
        if number == 100:
            world.engine.closed(link, "killed")
            link = world.link(window=4, instances=2, process="d2")
        for batch in link.batches[-2:]:
            world.complete(link, batch)

    def all_answered() -> bool:
        for batch in list(link.batches):
            world.complete(link, batch)
        return len(world.answers) == 200

    wait_until(all_answered)
    assert {len(found) for found in world.answers.values()} == {1}
    assert world.engine.open_requests() == 0


def test_answered_requests_are_freed_without_the_garbage_collector(world: World) -> None:
    """Else large payloads would stay until it comes by."""
    link = world.link()
    gc.collect()
    gc.disable()
    try:
        requests = [weakref.ref(world.submit(f"r{n}").reply) for n in range(4)]
        while world.engine.open_requests():
            world.complete(link, link.batches[-1])
        world.engine.cancel(world.request("never submitted"))
        assert [ref() for ref in requests] == [None] * 4
    finally:
        gc.enable()
