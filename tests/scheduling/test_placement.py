"""Placement prefers free, near executors, and load always returns to zero."""

import random

import pytest

from sits_scheduling.affinity import AffinityMap, Place
from sits_scheduling.candidates import Executor, ExecutorTable
from sits_scheduling.placing import EXACT_UP_TO, LEARN_EVERY_NS, Batch, Placing
from sits_scheduling.service_times import ServiceTimes
from sits_scheduling.strategies import STRATEGIES
from sits_scheduling.switchboard import Switchboard

RNG = random.Random(7)

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


def test_least_loaded_counts_batches_a_parallel_run() -> None:
    made = table(Executor("wide"), Executor("narrow"), slots=9)
    made.serve("wide", "m/1", 9, 4)
    picks = [place("least_loaded", made) for _ in range(10)]
    assert (picks.count("wide"), picks.count("narrow")) == (8, 2)


def test_power_of_two_avoids_the_fullest() -> None:
    made = table(*(Executor(f"e{n}") for n in range(8)), slots=999)
    for _ in range(100):
        made.reserve(0, "m/1", 1)
    strategy = STRATEGIES["power_of_two"](random.Random(2))
    picks = [strategy.place(made.candidates("m/1", HERE)) for _ in range(200)]
    # Only drawn twice in a row it is taken: 1 of 64.
    assert sum(1 for p in picks if p and p.choice == 0) < 12


def test_random_reaches_every_executor_with_room() -> None:
    made = table(*(Executor(f"e{n}") for n in range(8)), slots=999)
    strategy = STRATEGIES["random"](random.Random(2))
    picks = [strategy.place(made.candidates("m/1", HERE)) for _ in range(200)]
    assert {p.choice for p in picks if p} == set(range(8))


def test_topo_aware_weighs_the_way_against_the_wait() -> None:
    made = table(Executor("far", "host-b", "gpu0"), Executor("near", "host-a", "gpu0"))
    made.set_affinity(NEAR_AND_FAR)
    made.reserve(1, "m/1", 1, cost_ns=1_000_000)
    strategy = STRATEGIES["topo_aware"](random.Random(1))

    def choice(payload_bytes: int) -> int | None:
        seen = made.candidates("m/1", HERE, service_ns=1e6, payload_bytes=payload_bytes)
        decision = strategy.place(seen)
        return decision.choice if decision else None

    assert choice(100_000) == 0, "13 µs on the network are less than 1 ms in the queue"
    assert choice(100_000_000) == 1, "13 ms on the network are more"


def test_topo_aware_leaves_slow_executors_out_while_others_are_sooner_done() -> None:
    made = table(Executor("slow"), Executor("good"), slots=9)
    made.set_speed("slow", "m/1", 4.0)
    placing = Placing(made, ServiceTimes(), Switchboard("topo_aware", RNG), RNG)
    picks = [placing.place(Batch("m/1")) for _ in range(5)]
    assert [p.executor for p in picks if p].count("slow") == 1


def test_what_a_running_batch_has_done_no_longer_counts_as_wait() -> None:
    made = table(Executor("a"))
    made.reserve(0, "m/1", 1, cost_ns=10_000_000, now_ns=1_000)
    waits = [
        float(made.candidates("m/1", HERE, now_ns=1_000 + spent).wait_ns[0])
        for spent in (0, 4_000_000, 99_000_000)
    ]
    assert waits == [10_000_000, 6_000_000, 0]


def test_run_times_are_learnt_from_what_finished() -> None:
    made = table(Executor("a"), Executor("b"), slots=9)
    placing = Placing(made, ServiceTimes(), Switchboard("round_robin", RNG), RNG)
    batch = Batch("m/1", rows=8)
    for number in range(60):
        placed = placing.place(batch)
        assert placed is not None
        took = 30_000_000 if placed.executor == "a" else 10_000_000
        placing.finished(batch, placed.reservation, took, number * LEARN_EVERY_NS)
    assert placing.times.expected_ns("m/1", 8, "a") == pytest.approx(30e6, rel=0.1)
    assert made.candidates("m/1", HERE).speed[0] > 2 * made.candidates("m/1", HERE).speed[1]
    assert made.batches_in_flight() == 0


def test_of_runs_that_follow_closely_one_is_learnt_and_all_are_released() -> None:
    made = table(Executor("a"), Executor("b"), slots=9)
    placing = Placing(made, ServiceTimes(), Switchboard("round_robin", RNG), RNG)
    now = 10 * LEARN_EVERY_NS
    for model, times in (("m/1", 10), ("n/1", 1)):
        for executor in ("a", "b"):
            made.serve(executor, model, 9, 1)
        for number in range(2 * times):
            placed = placing.place(Batch(model))
            assert placed is not None
            placing.finished(Batch(model), placed.reservation, 1_000_000, now + number)
    assert repr(placing.times) == "<ServiceTimes runs: m/1 2, n/1 2>", "of each model and executor"
    assert made.batches_in_flight() == 0
    placed = placing.place(Batch("m/1"))
    assert placed is not None
    placing.finished(Batch("m/1"), placed.reservation, 1_000_000, now + LEARN_EVERY_NS)
    assert repr(placing.times) == "<ServiceTimes runs: m/1 3, n/1 2>"


def test_batches_in_a_rhythm_teach_all_of_their_sizes() -> None:
    """One row at once and the rest as one batch, whose ends are close together, again and again."""
    made = table(Executor("a"), slots=9)
    placing = Placing(made, ServiceTimes(), Switchboard("round_robin", RNG), RNG)
    for number in range(200):
        for after_ns, rows, took_ns in ((0, 1, 500_000), (700_000, 32, 700_000)):
            batch = Batch("m/1", rows)
            placed = placing.place(batch)
            assert placed is not None
            placing.finished(batch, placed.reservation, took_ns, number * 20_000_000 + after_ns)
    assert 400_000 < placing.times.expected_ns("m/1", 1) < 1_000_000
    assert 700_000 < placing.times.expected_ns("m/1", 32) < 1_400_000, "not 32 times one row"


def test_what_was_learnt_of_an_executor_goes_with_it() -> None:
    made = table(Executor("a"), slots=9)
    placing = Placing(made, ServiceTimes(), Switchboard("round_robin", RNG), RNG)
    for number in range(3):
        placed = placing.place(Batch("m/1"))
        assert placed is not None
        placing.finished(Batch("m/1"), placed.reservation, 1e6 * (number + 1), number * 10**9)
    assert placing.times.speed("m/1", "a") != 1.0
    placing.lost("a")
    assert placing.times.speed("m/1", "a") == 1.0
    assert not placing._learn_again_ns


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_large_tables_are_decided_from_a_sample_that_never_breaks_a_rule(name: str) -> None:
    made = ExecutorTable()
    for number in range(EXACT_UP_TO + 88):
        made.add(Executor(f"e{number}", f"h{number // 8}", f"gpu{number % 8}"))
        made.serve(f"e{number}", "m/1", int(number % 3 == 0), 1)
    rng = random.Random(6)
    placing = Placing(made, ServiceTimes(), Switchboard(name, rng), rng)
    batch = Batch("m/1", place=Place("h3", 0))
    seen = [placing.place(batch, excluded=("e0",)) for _ in range(199)]
    chosen = [p.executor for p in seen if p]
    assert len(set(chosen)) == len(chosen) == 199
    assert all(int(e[1:]) % 3 == 0 and e != "e0" for e in chosen)
    assert placing.place(batch, excluded=("e0",)) is None


def test_a_sample_always_holds_the_executors_next_to_the_payload() -> None:
    made = ExecutorTable()
    for number in range(2048):
        made.add(Executor(f"e{number}", f"h{number // 8}", f"gpu{number % 8}"))
        made.serve(f"e{number}", "m/1", 4, 1)
    weights = {"h200": {("cpu:0", f"gpu{n}"): 0.5 for n in range(8)}}
    made.set_affinity(AffinityMap(weights))
    seen = made.shortlist("m/1", Place("h200", 0), random.Random(1), 64)
    near = [int(p) for p, w in zip(seen.positions, seen.ways.ns_per_byte, strict=True) if w < 0.1]
    assert near == list(range(1600, 1608))
    assert 64 <= len(seen) <= 72


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
