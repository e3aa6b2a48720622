"""Level 2 of governance: waiting work moves from executors that hold too much of it."""

from itertools import cycle

import pytest

from sits_core.clock import now_ns
from sits_dispatcher.testing import World
from sits_protos.v1.common_pb2 import Error

TAKEN_BACK = Error(code=1, message="taken back", reason="TAKEN_BACK")
CANCELLED = Error(code=1, message="cancelled", reason="CANCELLED")
BROKEN = Error(code=13, message="no", reason="BROKEN")


@pytest.fixture
def uneven() -> World:
    """`a` holds eight batches of one row, `b` has just come."""
    world = World("a", slots=9)
    for number in range(8):
        world.send(number)
    world.executors["b"] = world.join("b", slots=9)
    return world


def asked_back(world: World, name: str) -> list[int]:
    cancels = [m.cancel for m in world.executors[name].sent if m.HasField("cancel")]
    assert all(cancel.if_waiting for cancel in cancels)
    return [cancel.batch_id for cancel in cancels]


def finish(world: World) -> list[int]:
    for name in world.executors:
        for own_id in world.open(name):
            world.answer(name, own_id)
    return sorted(result.batch_id for result in world.front_wire.results())


def test_the_newest_that_wait_are_asked_back_and_placed_anew(uneven: World) -> None:
    uneven.dispatcher.replace()
    asked = asked_back(uneven, "a")
    assert asked == [5, 6, 7, 8]
    for own_id in asked:
        uneven.fail_batch("a", own_id, TAKEN_BACK)
    assert uneven.open("b") == asked
    assert uneven.registry.get_sample_value("sits_dispatcher_replaced_total") == 4
    assert finish(uneven) == list(range(8))
    assert uneven.idle()


def test_what_has_begun_meanwhile_is_answered_as_ever(uneven: World) -> None:
    uneven.dispatcher.replace()
    assert finish(uneven) == list(range(8))
    assert uneven.idle()


def test_a_client_that_cancels_meanwhile_is_obeyed(uneven: World) -> None:
    uneven.dispatcher.replace()
    for own_id in asked_back(uneven, "a"):
        uneven.fail_batch("a", own_id, CANCELLED)
    assert uneven.open("b") == []
    finish(uneven)
    assert uneven.idle()


def test_what_is_even_is_left_alone() -> None:
    world = World("a", "b", slots=9)
    for number in range(8):
        world.send(number)
    world.dispatcher.replace()
    assert asked_back(world, "a") == asked_back(world, "b") == []


def test_what_is_given_back_without_room_elsewhere_waits_and_is_not_lost() -> None:
    world = World("a", slots=9)
    for number in range(8):
        world.send(number)
    world.executors["b"] = world.join("b", slots=1)
    world.dispatcher.replace()
    for own_id in asked_back(world, "a"):
        world.fail_batch("a", own_id, TAKEN_BACK)
    while not world.idle():
        finish(world)
    assert finish(world) == list(range(8))


def test_circuits_break_where_faults_are_frequent() -> None:
    """Every third batch fails on `a`, which five faults in a row would never notice."""
    world, well = World("a", "b", slots=9), cycle([False, True, True])
    for number in range(40):
        world.send(number)
        for own_id in world.open("a"):
            if next(well):
                world.answer("a", own_id)
            else:
                world.fail_batch("a", own_id, BROKEN)
        finish(world)
    before = len(world.executors["a"].batches())
    world.dispatcher.break_circuits(now_ns())
    for number in range(40, 60):
        world.send(number)
        finish(world)
    assert len(world.executors["a"].batches()) == before
    assert world.idle()
