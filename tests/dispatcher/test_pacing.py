"""An executor whose round trips tremble is sent to evenly, and nothing is lost by it (D8)."""

import random

import pytest

from sits_core.testing import FakeClock
from sits_dispatcher.testing import World
from sits_protos.v1.link_pb2 import ResultHeader, StageTimes

MS = 1_000_000
S = 1_000_000_000


def answer_all(world: World) -> None:
    """Each ran 1 ms."""
    times = StageTimes(executor_received=5, executor_sent=5 + MS)
    for own_id in world.open("a"):
        header = ResultHeader(batch_id=own_id, instance="a", times=times)
        world.dispatcher.result("a", header.SerializeToString(), memoryview(b""))


def trips(world: World, clock: FakeClock, stdev_ms: float, count: int = 80) -> None:
    """`count` micro-batches, each of which runs 1 ms, on ways that tremble by so much."""
    rng = random.Random(2)
    for number in range(count):
        world.send(number)
        world.dispatcher.expire(clock.unix_ns)
        while not world.open("a"):
            clock.unix_ns += 10 * MS
            world.dispatcher.expire(clock.unix_ns)
        clock.unix_ns += int(max(1.0, rng.gauss(200.0, stdev_ms)) * MS) + MS
        answer_all(world)
    clock.unix_ns += S
    world.dispatcher.expire(clock.unix_ns)
    world.front_wire.raw.clear()


def gauge(world: World, name: str) -> float | None:
    return world.registry.get_sample_value(f"sits_dispatcher_{name}", {"instance": "a"})


def sent_at_once(world: World) -> int:
    before = len(world.executors["a"].batches())
    for number in range(6):
        world.send(number)
    return len(world.executors["a"].batches()) - before


def test_a_steady_way_is_not_slowed(clock: FakeClock) -> None:
    world = World("a", slots=9)
    trips(world, clock, stdev_ms=2.0)
    assert gauge(world, "send_rate") == 1.0
    assert gauge(world, "jitter_ms") == pytest.approx(2.0, abs=1.0)
    assert sent_at_once(world) == 6


def test_a_trembling_way_is_sent_to_evenly_and_all_gets_there(clock: FakeClock) -> None:
    world = World("a", slots=9)
    trips(world, clock, stdev_ms=45.0)
    assert gauge(world, "send_rate") == pytest.approx(0.3)
    assert sent_at_once(world) == 1
    for _ in range(100):
        clock.unix_ns += 50 * MS
        world.dispatcher.expire(clock.unix_ns)
    assert len(world.open("a")) == 6
    assert world.dispatcher.counts() == (6, 0)


def test_who_has_nothing_to_do_is_not_held_back(clock: FakeClock) -> None:
    """Without: until the next look at the clock, 50 ms later at most, nobody works."""
    world = World("a", slots=9)
    trips(world, clock, stdev_ms=45.0)
    assert sent_at_once(world) == 1
    answer_all(world)
    assert len(world.open("a")) == 1
    answer_all(world)
    assert world.dispatcher.counts() == (1, 3)


def test_others_get_what_a_trembling_one_must_wait_for(clock: FakeClock) -> None:
    world = World("a", slots=9)
    trips(world, clock, stdev_ms=45.0)
    world.executors["b"] = world.join("b", slots=9)
    assert sent_at_once(world) == 1
    assert len(world.open("b")) == 5


def test_it_is_over_when_the_way_is_steady_again(clock: FakeClock) -> None:
    world = World("a", slots=9)
    trips(world, clock, stdev_ms=45.0)
    trips(world, clock, stdev_ms=1.0)
    assert gauge(world, "send_rate") == 1.0
    assert sent_at_once(world) == 6


def test_it_may_be_switched_off(clock: FakeClock) -> None:
    world = World("a", slots=9, dispatcher_jitter_control=False)
    trips(world, clock, stdev_ms=60.0)
    assert gauge(world, "send_rate") is None
    assert sent_at_once(world) == 6
