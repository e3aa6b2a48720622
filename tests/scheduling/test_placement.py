"""Placement prefers free, near executors, and load always returns to zero."""

import random

from sits_scheduling.affinity import AffinityMap, Place
from sits_scheduling.candidates import Executor, ExecutorTable
from sits_scheduling.strategies import STRATEGIES

HERE = Place("host-a", 0)
NEAR_AND_FAR = AffinityMap({"host-a": {("cpu:0", "gpu0"): 0.9, ("cpu:0", "gpu1"): 0.3}})


def table(*executors: Executor, slots: int = 2) -> ExecutorTable:
    made = ExecutorTable()
    for executor in executors:
        made.add(executor)
        made.serve(executor.id, "m/1", slots, 1)
    return made


def place(strategy: str, made: ExecutorTable, excluded: tuple[str, ...] = ()) -> str | None:
    decision = STRATEGIES[strategy](random.Random(7)).place(made.candidates("m/1", HERE, excluded))
    if decision is None:
        return None
    return made.reserve(decision.choice, "m/1", 1).executor


def test_topo_aware_takes_the_nearer_of_two_free_executors() -> None:
    made = table(Executor("far", "host-a", "gpu1"), Executor("near", "host-a", "gpu0"))
    made.set_affinity(NEAR_AND_FAR)
    assert place("topo_aware", made) == "near"


def test_topo_aware_takes_a_free_far_executor_before_a_busy_near_one() -> None:
    made = table(Executor("far", "host-a", "gpu1"), Executor("near", "host-a", "gpu0"))
    made.set_affinity(NEAR_AND_FAR)
    assert [place("topo_aware", made) for _ in range(2)] == ["near", "far"]


def test_another_host_is_farther_than_any_device_of_this_one() -> None:
    made = table(Executor("other", "host-b", "gpu0"), Executor("far", "host-a", "gpu1"))
    made.set_affinity(NEAR_AND_FAR)
    assert place("topo_aware", made) == "far"


def test_without_any_signal_traffic_still_flows() -> None:
    made = table(Executor("one"), Executor("two"))
    assert {place("topo_aware", made) for _ in range(4)} == {"one", "two"}


def test_unknown_is_neither_near_nor_far() -> None:
    made = table(
        Executor("unknown", "host-a", "gpu9"),
        Executor("far", "host-a", "gpu1"),
        Executor("near", "host-a", "gpu0"),
    )
    made.set_affinity(NEAR_AND_FAR)
    assert [place("topo_aware", made) for _ in range(3)] == ["near", "unknown", "far"]


def test_round_robin_takes_turns() -> None:
    made = table(Executor("a"), Executor("b"), Executor("c"), slots=9)
    strategy = STRATEGIES["round_robin"](random.Random(1))
    picks = [strategy.place(made.candidates("m/1", HERE)) for _ in range(4)]
    assert [p.choice for p in picks if p] == [0, 1, 2, 0]


def test_least_loaded_fills_evenly() -> None:
    made = table(Executor("a"), Executor("b"))
    picks = [place("least_loaded", made) for _ in range(4)]
    assert sorted(p for p in picks if p) == ["a", "a", "b", "b"]


def test_full_or_excluded_executors_are_never_picked() -> None:
    for strategy in STRATEGIES:
        made = table(Executor("a"), Executor("b"), slots=1)
        assert place(strategy, made, excluded=("a",)) == "b"
        assert place(strategy, made, excluded=("a",)) is None
        assert place(strategy, made) == "a"
        assert place(strategy, made) is None


def test_a_reservation_is_released_exactly_once() -> None:
    made = table(Executor("a"))
    first = made.reserve(0, "m/1", 3)
    second = made.reserve(0, "m/1", 4)
    first.release()
    first.release()
    assert (made.batches_in_flight("a"), made.rows_in_flight("a")) == (1, 4)
    second.release()
    assert made.batches_in_flight() == 0


def test_a_release_after_its_executor_left_does_not_touch_its_successor() -> None:
    made = table(Executor("old"))
    late = made.reserve(0, "m/1", 1)
    made.remove("old")
    made.add(Executor("new"))
    made.serve("new", "m/1", 2, 1)
    made.reserve(0, "m/1", 1)
    late.release()
    assert made.batches_in_flight("new") == 1


def test_capacity_sums_what_executors_take() -> None:
    made = table(Executor("a"), Executor("b"))
    made.serve("b", "m/1", 4, 2, micro_batch_rows=16)
    assert made.capacity("m/1") == (6, 3, 16)
    assert made.capacity("unknown") == (0, 0, 0)
