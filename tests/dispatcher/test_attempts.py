"""Two attempts at one micro-batch: one answer, and no load left behind, however they end."""

import pytest

from sits_core.clock import now_ns
from sits_core.testing import FakeClock
from sits_dispatcher.testing import World
from sits_protos.v1.common_pb2 import Error, PayloadRef, Tensor
from sits_protos.v1.link_pb2 import Cancel, LinkMessage, ResultHeader

MS = 1_000_000
S = 1_000_000_000
LATER = 100 * S
"""After which everything that is under way is late."""

BROKEN = Error(code=13, message="no", reason="BROKEN")
WRONG = Error(code=3, message="no", reason="INVALID_ARGUMENT")
LATE = Error(code=4, message="no", reason="DEADLINE_EXCEEDED")
CANCELLED = Error(code=1, message="no", reason="CANCELLED")


def hedging(percent: float = 50.0, **settings: object) -> World:
    """Three executors, whose usual round trips are known and have paid for some hedges."""
    world = World("a", "b", "c", slots=9, dispatcher_hedge_percent=percent, **settings)
    for number in range(12):
        world.send(1000 + number)
        answer_all(world)
    world.front_wire.raw.clear()
    return world


def answer_all(world: World) -> None:
    for name in world.executors:
        for own_id in world.open(name):
            world.answer(name, own_id)


def two_attempts(world: World) -> tuple[str, str]:
    """Send a batch that gets late: who has it first, and who second."""
    world.send(1)
    (first,) = (name for name in world.executors if world.open(name))
    world.dispatcher.hedge(now_ns() + LATER)
    (second,) = (name for name in world.executors if world.open(name) and name != first)
    return first, second


def answers(world: World) -> list[int]:
    return [result.batch_id for result in world.front_wire.results()]


def count(world: World, name: str, attempt: str) -> float:
    found = world.registry.get_sample_value(f"{name}_total", {"attempt": attempt})
    return found or 0.0


def answer(world: World, name: str) -> None:
    world.answer(name, world.open(name)[0])


class TestHedges:
    @pytest.mark.parametrize("winner", [0, 1])
    def test_the_first_answer_wins_and_the_other_attempt_is_cancelled(self, winner: int) -> None:
        world = hedging()
        names = two_attempts(world)
        quick, slow = names[winner], names[1 - winner]
        left = world.open(slow)[0]
        answer(world, quick)
        assert answers(world) == [1]
        assert world.executors[slow].sent[-1].cancel.batch_id == left
        assert not world.idle(), "the beaten executor still has it"
        world.fail(slow, CANCELLED)
        assert answers(world) == [1]
        assert world.idle()
        decided = "sits_dispatcher_second_attempts_decided"
        assert count(world, decided, ("first", "hedge")[winner]) == 1

    def test_a_beaten_attempt_that_answers_all_the_same_is_dropped(self) -> None:
        world = hedging()
        first, second = two_attempts(world)
        answer(world, second)
        answer(world, first)
        assert answers(world) == [1]
        assert world.idle()

    def test_the_slots_of_outputs_that_nobody_reads_are_given_back(self) -> None:
        world = hedging()
        first, second = two_attempts(world)
        answer(world, second)
        slot = PayloadRef(pool="p", generation=5)
        body = LinkMessage(outputs=[Tensor(name="y", reference=slot)]).SerializeToString()
        header = ResultHeader(batch_id=world.open(first)[0], instance=first, payload_bytes=9)
        world.dispatcher.result(first, header.SerializeToString(), memoryview(body))
        release = world.executors[first].sent[-1].release
        assert (release.instance, list(release.slots)) == (first, [slot])

    @pytest.mark.parametrize("broken", [0, 1])
    def test_a_fault_leaves_the_answer_to_the_other_attempt(self, broken: int) -> None:
        world = hedging()
        names = two_attempts(world)
        world.fail(names[broken], BROKEN)
        assert answers(world) == []
        answer(world, names[1 - broken])
        assert answers(world) == [1]
        assert not world.front_wire.results()[0].HasField("error")
        assert world.idle()

    @pytest.mark.parametrize("lost", [0, 1])
    def test_a_lost_executor_leaves_the_answer_to_the_other_attempt(self, lost: int) -> None:
        world = hedging()
        names = two_attempts(world)
        world.lose(names[lost])
        assert answers(world) == []
        answer(world, names[1 - lost])
        assert answers(world) == [1]
        assert world.idle()

    def test_when_both_fail_the_batch_moves_on(self) -> None:
        world = hedging()
        first, second = two_attempts(world)
        (third,) = world.executors.keys() - {first, second}
        world.fail(first, BROKEN)
        world.fail(second, BROKEN)
        answer(world, third)
        assert answers(world) == [1]
        assert world.idle()

    def test_when_both_executors_are_lost_the_batch_moves_on(self) -> None:
        world = hedging()
        first, second = two_attempts(world)
        (third,) = world.executors.keys() - {first, second}
        world.lose(first)
        world.lose(second)
        answer(world, third)
        assert answers(world) == [1]
        assert world.idle()

    def test_wrong_input_is_answered_by_whoever_says_so_first(self) -> None:
        world = hedging()
        first, second = two_attempts(world)
        world.fail(second, WRONG)
        assert [r.error.code for r in world.front_wire.results()] == [3]
        world.fail(first, CANCELLED)
        assert world.idle()

    def test_a_front_that_leaves_cancels_both(self) -> None:
        world = hedging()
        names = two_attempts(world)
        world.dispatcher.front_lost(world.front)
        for name in names:
            assert world.executors[name].sent[-1].HasField("cancel")
            world.fail(name, CANCELLED)
        assert answers(world) == []
        assert world.idle()

    def test_nothing_is_hedged_twice_or_before_it_is_late(self) -> None:
        world = hedging()
        world.send(1)
        world.dispatcher.hedge(0)
        assert sum(len(world.open(name)) for name in world.executors) == 1
        for _ in range(5):
            world.dispatcher.hedge(now_ns() + LATER)
        assert sum(len(world.open(name)) for name in world.executors) == 2

    def test_a_beaten_attempt_that_never_ends_is_not_hedged_again(self) -> None:
        world = hedging()
        _, second = two_attempts(world)
        answer(world, second)
        for _ in range(5):
            world.dispatcher.hedge(now_ns() + LATER)
        assert count(world, "sits_dispatcher_second_attempts", "hedge") == 1

    def test_a_hedge_takes_nobodys_place(self) -> None:
        world = hedging()
        for number in range(3):
            world.send(number)
        world.dispatcher.hedge(now_ns() + LATER)
        assert [len(world.open(name)) for name in world.executors] == [1, 1, 1]

    def test_hedges_stay_within_their_part_of_all_batches(self) -> None:
        world = hedging(percent=10.0)
        for number in range(100):
            world.send(number)
            world.dispatcher.hedge(now_ns() + LATER)
            answer_all(world)
        made = count(world, "sits_dispatcher_second_attempts", "hedge")
        assert 10 <= made <= 12
        assert world.idle()

    @pytest.mark.parametrize("left", [0, 1])
    def test_a_hedge_is_for_those_only_who_still_wait(self, left: int) -> None:
        world = hedging()
        world.send(1, requests=2)
        for position in range(2 - left):
            world.dispatcher.cancel(world.front, Cancel(batch_id=1, requests=[position]))
        (first,) = (name for name in world.executors if world.open(name))
        world.dispatcher.hedge(now_ns() + LATER)
        seconds = [name for name in world.executors if world.open(name) and name != first]
        assert len(seconds) == left
        for second in seconds:
            assert list(world.executors[second].sent[-1].cancel.requests) == [0]

    def test_what_cannot_be_in_time_any_more_is_not_hedged(self) -> None:
        world = hedging()
        world.send(1, deadline=now_ns() + LATER // 2)
        world.dispatcher.hedge(now_ns() + LATER)
        assert sum(len(world.open(name)) for name in world.executors) == 1

    def test_without_the_setting_there_are_none(self) -> None:
        world = hedging(percent=0.0)
        world.send(1)
        world.dispatcher.hedge(now_ns() + LATER)
        assert sum(len(world.open(name)) for name in world.executors) == 1


RESET_S = 5.0


@pytest.fixture
def tripped(clock: FakeClock) -> World:
    """`a` has failed until its breaker opened; `b` is well."""
    world = World("a", "b", slots=200)
    for number in range(20):
        world.send(1000 + number)
        while world.open("a"):
            world.fail("a", BROKEN)
        answer_all(world)
    world.front_wire.raw.clear()
    return world


def fifty(world: World) -> int:
    """Send 50 batches at once; how many reach `a`."""
    before = len(world.executors["a"].batches())
    for number in range(50):
        world.send(number)
    return len(world.executors["a"].batches()) - before


class TestProbes:
    def test_brk_01_before_the_reset_time_nothing_reaches_it(self, tripped: World) -> None:
        assert fifty(tripped) == 0

    def test_brk_01_after_it_one_copy_of_fifty_does_and_no_client_waits_for_it(
        self, tripped: World, clock: FakeClock
    ) -> None:
        clock.advance(RESET_S)
        assert fifty(tripped) == 1
        for own_id in tripped.open("b"):
            tripped.answer("b", own_id)
        assert len(answers(tripped)) == 50
        assert not tripped.executors["a"].sent[-1].HasField("cancel"), "how it ends is what counts"

    @pytest.mark.parametrize("end", [CANCELLED, LATE, WRONG])
    def test_brk_01_a_probe_that_ends_in_any_way_makes_room_for_the_next(
        self, tripped: World, clock: FakeClock, end: Error
    ) -> None:
        clock.advance(RESET_S)
        assert fifty(tripped) == 1
        tripped.fail("a", end)
        assert fifty(tripped) == 1
        answer_all(tripped)
        assert len(answers(tripped)) == 100
        assert not any(r.HasField("error") for r in tripped.front_wire.results())
        assert tripped.idle()

    def test_brk_01_a_hanging_probe_makes_room_after_the_reset_time(
        self, tripped: World, clock: FakeClock
    ) -> None:
        clock.advance(RESET_S)
        assert [fifty(tripped), fifty(tripped)] == [1, 0]
        clock.advance(RESET_S)
        assert fifty(tripped) == 1

    def test_brk_01_the_breaker_closes_with_the_first_probe_that_succeeds(
        self, tripped: World, clock: FakeClock
    ) -> None:
        clock.advance(RESET_S)
        assert fifty(tripped) == 1
        answer_all(tripped)
        clock.advance(RESET_S)
        tripped.dispatcher.guard.look(clock.unix_ns)
        gauge = "sits_dispatcher_breaker"
        assert tripped.registry.get_sample_value(gauge, {"instance": "a"}) == 0
        assert fifty(tripped) == 25
        answer_all(tripped)
        assert tripped.idle()

    def test_a_failing_probe_costs_nobody_an_answer(self, tripped: World, clock: FakeClock) -> None:
        clock.advance(RESET_S)
        fifty(tripped)
        tripped.fail("a", BROKEN)
        assert fifty(tripped) == 0, "it is open again"
        answer_all(tripped)
        assert not any(r.HasField("error") for r in tripped.front_wire.results())
        assert tripped.idle()

    def test_a_probe_on_a_lost_executor_is_missed_by_nobody(
        self, tripped: World, clock: FakeClock
    ) -> None:
        clock.advance(RESET_S)
        fifty(tripped)
        tripped.lose("a")
        answer_all(tripped)
        assert len(answers(tripped)) == 50
        assert tripped.idle()

    def test_when_the_healthy_one_fails_nobody_waits_for_the_probe(
        self, tripped: World, clock: FakeClock
    ) -> None:
        tripped.join("c", slots=200)
        clock.advance(RESET_S)
        tripped.send(1)
        (healthy,) = (name for name in ("b", "c") if tripped.open(name))
        tripped.fail(healthy, BROKEN)
        (other,) = (name for name in ("b", "c") if tripped.open(name))
        assert other != healthy
        tripped.answer(other, tripped.open(other)[0])
        assert answers(tripped) == [1]
        answer_all(tripped)
        assert tripped.idle()
