"""A shadow compares and never acts."""

import random

from sits_scheduling.affinity import Place
from sits_scheduling.candidates import Executor, ExecutorTable
from sits_scheduling.placing import Batch, Placing
from sits_scheduling.service_times import ServiceTimes
from sits_scheduling.switchboard import Switchboard

BATCH = Batch("m/1")


def placing(strategy: str, shadow: str, executors: int = 2) -> Placing:
    table = ExecutorTable()
    for number in range(executors):
        table.add(Executor(f"e{number}"))
        table.serve(f"e{number}", "m/1", 99, 1)
    rng = random.Random(1)
    made = Placing(table, ServiceTimes(), Switchboard(strategy, rng), rng)
    made.set_shadow(shadow)
    return made


def test_the_same_strategy_always_agrees() -> None:
    made = placing("round_robin", "round_robin")
    for _ in range(10):
        made.place(BATCH)
    assert made.shadow is not None
    assert made.shadow.report() == ("round_robin", 10, 10, 0.0)


def test_a_shadow_reports_what_it_would_have_saved() -> None:
    made = placing("round_robin", "topo_aware")
    made.table.reserve(0, "m/1", 1, cost_ns=10_000_000)
    made.place(BATCH)  # round robin takes e0, which is busy for 10 ms
    assert made.shadow is not None
    report = made.shadow.report()
    assert (report.decisions, report.agreed, report.gain_us) == (1, 0, 10_000.0)


def test_a_worse_strategy_shows_as_a_loss() -> None:
    made = placing("topo_aware", "random", executors=4)
    for _ in range(200):
        made.place(BATCH)
    assert made.shadow is not None
    report = made.shadow.report()
    assert report.agreement < 0.6
    assert report.gain_us < 0


def test_a_shadow_changes_no_decision_and_reserves_nothing() -> None:
    with_one, without = placing("topo_aware", "power_of_two"), placing("topo_aware", "")
    without.strategies.another("random")
    placed = [(with_one.place(BATCH), without.place(BATCH)) for _ in range(20)]
    loads = [table.table.batches_in_flight() for table in (with_one, without)]
    assert loads == [20, 20]
    assert all(one and other for one, other in placed)
    seen = with_one.table.candidates("m/1", Place(""))
    assert seen.batches[:2].tolist() == [10, 10]


def test_a_shadow_can_be_ended() -> None:
    made = placing("topo_aware", "random")
    made.set_shadow("")
    made.place(BATCH)
    assert made.shadow is None
