"""Every micro-batch ends in exactly one result, and reserved load returns to zero."""

import random

import pytest

from sits_channel import wire
from sits_channel.bounded import Pressure
from sits_core.clock import now_ns
from sits_dispatcher.dispatcher import FEW
from sits_dispatcher.placer import Placer
from sits_dispatcher.testing import World
from sits_protos.v1.common_pb2 import Error, Tensor
from sits_protos.v1.link_pb2 import BatchHeader, Cancel, LinkMessage, ResultHeader
from sits_scheduling.candidates import ExecutorTable
from sits_scheduling.orders import Fifo
from sits_scheduling.strategies import STRATEGIES, Strategy

S = 1_000_000_000


def test_a_result_comes_back_under_the_fronts_own_batch_id() -> None:
    world = World("a")
    world.send(batch_id=77)
    own_id = world.executors["a"].batches()[0].batch_id
    body = LinkMessage(outputs=[Tensor(name="y", inline=b"z")]).SerializeToString()
    world.answer("a", own_id, body)
    result = world.front_wire.sent[0]
    assert result.result.batch_id == 77
    assert result.outputs[0].inline == b"z"
    assert 0 < result.result.times.dispatcher_received <= result.result.times.dispatcher_returned
    assert world.idle()


def test_the_front_has_a_success_before_anything_is_learnt_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And a failure after it, since that may go elsewhere instead; and many, since then load
    matters more."""
    world, held = World("a"), list[int]()
    write = world.front_wire.write

    def look(message: bytes) -> Pressure:
        held.append(world.table.batches_in_flight())
        return write(message)

    monkeypatch.setattr(world.front_wire, "write", look)
    world.send(batch_id=1)
    world.answer("a", world.open("a")[0])
    assert world.idle()
    world.send(batch_id=2)
    world.fail("a", Error(code=3, message="bad input"))
    world.send(batch_id=3, requests=FEW + 1)
    world.answer("a", world.open("a")[0])
    assert held == [1, 0, 0]
    assert world.idle()


def test_the_body_is_forwarded_as_it_came() -> None:
    world = World("a")
    body = b"\x4a\x03abc"  # field 9, but no valid RequestHeader: nobody may look inside
    header = BatchHeader(batch_id=1, model="m", version="1", requests=1, rows=1)
    world.dispatcher.batch(world.front, header.SerializeToString(), body)
    assert world.executors["a"].raw[0].endswith(body)


def test_a_lost_executors_batches_move_on_and_lose_nothing() -> None:
    world = World("a", "b", slots=9)
    for batch_id in range(1, 5):
        world.send(batch_id)
    world.lose("a")
    assert len(world.executors["b"].batches()) == 4
    for header in world.executors["b"].batches():
        world.answer("b", header.batch_id)
    assert sorted(r.batch_id for r in world.front_wire.results()) == [1, 2, 3, 4]
    assert not any(r.HasField("error") for r in world.front_wire.results())
    assert {h.moves for h in world.executors["b"].batches()} == {0, 1}
    assert world.idle()


def test_a_batch_moves_twice_and_no_further() -> None:
    world = World("a")
    world.send()
    for successor in ("b", "c", "d"):
        world.lose({"b": "a", "c": "b", "d": "c"}[successor])
        world.join(successor)
    (result,) = world.front_wire.results()
    assert result.error.reason == "UNAVAILABLE"
    assert world.idle()


def test_what_was_learnt_of_an_executor_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """They come and go under new names for as long as a dispatcher lives."""
    world = World("a")
    forgot: list[str] = []
    monkeypatch.setattr(world.dispatcher.placer._placing.times, "forget", forgot.append)
    world.lose("a")
    assert forgot == ["a"]


def test_a_late_result_of_a_lost_executor_is_dropped() -> None:
    world = World("a", "b")
    world.send()
    own_id = world.executors["a"].batches()[0].batch_id
    world.lose("a")
    world.answer("a", own_id)
    assert world.front_wire.results() == []
    world.answer("b", own_id)
    assert len(world.front_wire.results()) == 1
    assert world.idle()


def test_what_finds_no_room_waits_and_goes_by_priority() -> None:
    world = World("a", slots=1)
    for batch_id in (1, 2, 3):
        world.send(batch_id)
    assert world.dispatcher.counts() == (1, 2)
    for _ in range(3):
        world.answer("a", world.executors["a"].batches()[-1].batch_id)
    assert [r.batch_id for r in world.front_wire.results()] == [1, 2, 3]
    assert world.idle()


def test_a_full_queue_refuses_at_once() -> None:
    world = World("a", slots=1, dispatcher_max_pending=1)
    for batch_id in (1, 2, 3):
        world.send(batch_id)
    (refused,) = world.front_wire.results()
    assert (refused.batch_id, refused.error.reason) == (3, "QUEUE_FULL")


def test_expired_work_is_refused_and_never_sent() -> None:
    world = World("a")
    world.send(deadline=now_ns() - 1)
    assert world.executors["a"].batches() == []
    assert world.front_wire.results()[0].error.reason == "DEADLINE_EXCEEDED_IN_DISPATCHER"


def test_waiting_work_is_refused_when_its_deadline_passes() -> None:
    world = World("a", slots=1)
    world.send(1)
    world.send(2, deadline=now_ns() + 60 * S)
    world.dispatcher.expire(now_ns() + 61 * S)
    (refused,) = world.front_wire.results()
    assert (refused.batch_id, refused.error.code) == (2, 4)


def test_without_any_executor_a_batch_waits_for_one_then_hears_why_not() -> None:
    world = World()
    world.send(1)
    world.dispatcher.expire(now_ns() + 1 * S)
    assert world.front_wire.results() == []
    world.dispatcher.expire(now_ns() + 6 * S)
    assert world.front_wire.results()[0].error.reason == "NO_EXECUTOR"
    world.send(2)
    joined = world.join("late")
    assert len(joined.batches()) == 1


def test_a_write_that_is_refused_tries_the_other_executor() -> None:
    world = World("a", "b")
    world.executors["a"].accepts = False
    world.send()
    assert len(world.executors["b"].batches()) == 1
    world.answer("b", world.executors["b"].batches()[0].batch_id)
    assert world.idle()


def test_a_lost_fronts_work_is_cancelled_and_its_load_released() -> None:
    world = World("a", slots=1)
    world.send(1)
    world.send(2)
    world.dispatcher.front_lost(world.front)
    assert world.executors["a"].sent[-1].HasField("cancel")
    world.answer("a", world.executors["a"].batches()[0].batch_id)
    assert world.front_wire.results() == []
    assert world.idle()


def test_a_cancel_reaches_the_executor_under_its_own_batch_id() -> None:
    world = World("a")
    world.send(5, requests=3)
    world.dispatcher.cancel(world.front, Cancel(batch_id=5, requests=[2]))
    cancel = world.executors["a"].sent[-1].cancel
    assert cancel.batch_id == world.executors["a"].batches()[0].batch_id
    assert list(cancel.requests) == [2]


def test_what_waits_and_nobody_wants_any_more_is_dropped_and_answered() -> None:
    """The answer gives the front its place back."""
    world = World("a", slots=1)
    world.send(1)
    world.send(2, requests=2)
    for position in (0, 1):
        world.dispatcher.cancel(world.front, Cancel(batch_id=2, requests=[position]))
    (dropped,) = world.front_wire.results()
    assert (dropped.batch_id, dropped.requests, dropped.error.code) == (2, 2, 1)
    world.answer("a", world.open("a")[0])
    assert len(world.executors["a"].batches()) == 1
    assert world.idle()


def test_who_gave_up_while_a_batch_waited_does_not_run_with_the_others() -> None:
    world = World("a", slots=1)
    world.send(1)
    world.send(2, requests=3)
    world.dispatcher.cancel(world.front, Cancel(batch_id=2, requests=[1]))
    world.answer("a", world.open("a")[0])
    batch, cancel = world.executors["a"].sent[-2:]
    assert (cancel.cancel.batch_id, list(cancel.cancel.requests)) == (batch.batch.batch_id, [1])


@pytest.mark.parametrize("left", [0, 1])
def test_a_lost_executors_batch_goes_on_for_those_only_who_still_wait(left: int) -> None:
    world = World("a", "b")
    world.send(1, requests=2)
    for position in range(2 - left):
        world.dispatcher.cancel(world.front, Cancel(batch_id=1, requests=[position]))
    world.lose("a")
    kinds = [wire.split(message).kind for message in world.executors["b"].raw]
    assert kinds == [wire.BATCH, wire.CANCEL] * left
    if not left:
        assert [result.error.code for result in world.front_wire.results()] == [1]
        assert world.dispatcher.idle()


def test_a_front_that_reads_nothing_loses_its_link() -> None:
    world = World("a")
    world.send()
    world.front_wire.accepts = False
    world.answer("a", world.executors["a"].batches()[0].batch_id)
    assert world.front_wire.closed
    assert world.idle()


@pytest.mark.parametrize("limit", [1, 2, 3, 5])
def test_large_batches_are_split_between_requests(limit: int) -> None:
    world = World("a", "b", slots=9, micro_batch_rows=limit)
    world.send(9, requests=5)
    sent = [m for peer in world.executors.values() for m in peer.sent]
    assert all(m.batch.rows <= limit for m in sent)
    rows = sorted(b for m in sent for b in m.inputs[0].inline)
    assert rows == [0, 1, 2, 3, 4]
    assert all(m.inputs[0].shape[0] == m.batch.rows == len(m.requests) for m in sent)
    for name, peer in world.executors.items():
        for header in peer.batches():
            world.answer(name, header.batch_id)
    parts = sorted((r.first_request, r.requests) for r in world.front_wire.results())
    assert [first for first, _ in parts] == [
        sum(n for _, n in parts[:i]) for i in range(len(parts))
    ]
    assert sum(n for _, n in parts) == 5
    assert world.idle()


def test_a_single_large_request_is_never_split() -> None:
    world = World("a", micro_batch_rows=2)
    world.send(1, requests=1, rows=5)
    assert world.executors["a"].batches()[0].rows == 5


def test_malformed_heads_are_refused_by_the_wire() -> None:
    with pytest.raises(wire.MalformedMessage):
        wire.split(b"\xff\xff")


def failed(code: int, reason: str) -> Error:
    return Error(code=code, message="no", reason=reason)


def test_a_failed_batch_is_tried_on_another_executor(world_of_two: World) -> None:
    world = world_of_two
    world.send(1)
    world.fail("a", failed(13, "BAD_RESULT"))
    assert len(world.executors["b"].batches()) == 1
    assert world.front_wire.results() == []
    world.answer("b", world.executors["b"].batches()[0].batch_id)
    assert [r.HasField("error") for r in world.front_wire.results()] == [False]
    assert world.idle()


def test_what_another_executor_cannot_run_in_time_is_not_tried_there(world_of_two: World) -> None:
    world = world_of_two
    for executor in ("a", "b"):
        world.dispatcher.placer._placing.times.observe("m/1", 1, executor, 60 * S)
    world.send(1, deadline=now_ns() + 50 * S)
    world.fail("a", failed(13, "BAD_RESULT"))
    assert world.executors["b"].batches() == []
    assert world.front_wire.results()[0].error.reason == "BAD_RESULT"
    assert world.idle()


def test_bad_input_is_not_tried_again(world_of_two: World) -> None:
    world_of_two.send(1)
    world_of_two.fail("a", failed(3, "INVALID_ARGUMENT"))
    assert world_of_two.front_wire.results()[0].error.code == 3
    assert world_of_two.idle()


def test_without_another_executor_a_failure_is_the_answer() -> None:
    world = World("a")
    world.send(1)
    world.fail("a", failed(13, "BAD_RESULT"))
    assert world.front_wire.results()[0].error.reason == "BAD_RESULT"
    assert world.idle()


def test_an_executor_that_keeps_failing_gets_no_more_work(world_of_two: World) -> None:
    world = world_of_two
    for batch_id in range(1, 30):
        world.send(batch_id)
        while world.open("a"):
            world.fail("a", failed(13, "BROKEN"))
        for own_id in world.open("b"):
            world.answer("b", own_id)
    assert len(world.executors["a"].batches()) == 5
    assert len(world.front_wire.results()) == 29
    assert world.idle()


def test_when_all_executors_fail_work_still_flows() -> None:
    world = World("a")
    for batch_id in range(1, 10):
        world.send(batch_id)
        world.fail("a", failed(13, "BROKEN"))
    assert len(world.executors["a"].batches()) == 9
    assert len(world.front_wire.results()) == 9
    assert world.idle()


def test_a_full_executor_is_not_a_broken_one(world_of_two: World) -> None:
    world = world_of_two
    for batch_id in range(1, 12):
        world.send(batch_id)
        for name in ("a", "b"):
            for own_id in world.open(name):
                error = failed(14, "QUEUE_FULL") if name == "a" else None
                header = ResultHeader(batch_id=own_id, error=error)
                world.dispatcher.result(name, header.SerializeToString(), b"")
    assert len(world.executors["a"].batches()) > 5


@pytest.fixture
def world_of_two() -> World:
    return World("a", "b", slots=9)


def served_in_turn(world: World, count: int) -> list[BatchHeader]:
    """What the one slot of `a` gets, one after the other."""
    for _ in range(count):
        world.answer("a", world.executors["a"].batches()[-1].batch_id)
    return world.executors["a"].batches()[1 : 1 + count]


def test_tenants_take_turns_by_their_weights_while_they_wait() -> None:
    world = World("a", slots=1)
    world.send(1)
    for number in range(40):
        world.send(100 + number, rows=16, tenant="bronze")
        world.send(200 + number, rows=16, tenant="gold")
    served = served_in_turn(world, 32)
    assert [header.tenant for header in served].count("gold") == pytest.approx(24, abs=4)


def test_a_switched_strategy_sorts_anew_what_waits() -> None:
    world = World("a", slots=1)
    world.send(1)
    for number in range(6):
        world.send(10 + number, rows=number + 1, earliest=now_ns() + (60 - number) * S)
    assert [header.rows for header in served_in_turn(world, 2)] == [1, 2]
    world.dispatcher.placer.switch("deadline")
    assert [header.rows for header in served_in_turn(world, 6)[2:]] == [6, 5, 4, 3]


def test_strategies_of_installed_packages_can_be_switched_to() -> None:
    def mine(rng: random.Random) -> Strategy:
        return Strategy("mine", Fifo(), STRATEGIES["random"](rng).placement)

    placer = Placer(ExecutorTable(), "random", random.Random(1), {"mine": mine})
    assert "mine" in placer.names()
    placer.switch("mine", "m")
    assert placer.order("m/1").name == "fifo"
