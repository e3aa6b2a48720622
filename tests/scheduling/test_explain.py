"""For the last 10,000 requests one can ask why they went where they went."""

import random

from sits_scheduling.affinity import AffinityMap, Place
from sits_scheduling.batching import CloseReason
from sits_scheduling.candidates import Executor, ExecutorTable
from sits_scheduling.explain import KEPT, DecisionLog
from sits_scheduling.placing import Batch, Placing
from sits_scheduling.service_times import ServiceTimes
from sits_scheduling.switchboard import Switchboard


def placing(executors: int = 3, capacity: int = 100, slots: int = 9) -> tuple[Placing, DecisionLog]:
    table = ExecutorTable()
    for number in range(executors):
        table.add(Executor(f"e{number}", "host-a", f"gpu{number}"))
        table.serve(f"e{number}", "m/1", slots, 1)
    weights = {("cpu:0", f"gpu{n}"): 0.9 - 0.1 * min(n, 8) for n in range(executors)}
    table.set_affinity(AffinityMap({"host-a": weights}))
    rng, log = random.Random(1), DecisionLog(capacity)
    return Placing(table, ServiceTimes(), Switchboard("topo_aware", rng), rng, log), log


def batch(*ids: str) -> Batch:
    return Batch("m/1", 8, 1 << 20, Place("host-a", 0), ids, CloseReason.ROWS)


def test_an_explanation_names_candidates_scores_pick_and_closing_reason() -> None:
    made, log = placing()
    made.place(batch("r1", "r2"), now_ns=5)
    found = log.find("r2")
    assert found is not None
    assert (found.model, found.strategy, found.decided_ns) == ("m/1", "topo_aware", 5)
    assert found.closed_by is CloseReason.ROWS
    assert (found.considered, found.eligible) == (3, 3)
    assert [option.executor for option in found.options] == ["e0", "e1", "e2"]
    assert set(found.pick.scores) == {"transfer_us", "wait_us", "service_us"}
    totals = [option.total for option in found.options]
    assert totals == sorted(totals, reverse=True)


def test_executors_without_room_are_shown_as_such() -> None:
    made, log = placing(executors=2, slots=1)
    made.place(batch("first"))
    made.place(batch("second"))
    found = log.find("second")
    assert found is not None
    assert (found.considered, found.eligible) == (2, 1)
    assert [(o.executor, o.room) for o in found.options] == [("e1", True), ("e0", False)]


def test_of_many_candidates_the_pick_and_the_best_others_are_kept() -> None:
    made, log = placing(executors=40)
    made.place(batch("r"))
    found = log.find("r")
    assert found is not None
    assert (len(found.options), found.considered) == (KEPT, 40)
    assert [option.executor for option in found.options] == [f"e{n}" for n in range(KEPT)]


def test_the_compact_form_fits_a_metadata_value() -> None:
    made, log = placing()
    made.place(batch("r"))
    found = log.find("r")
    assert found is not None
    text = found.compact()
    assert text.startswith("executor=e0;strategy=topo_aware;of=3;transfer_us=-")
    assert text.endswith(";closed_by=rows")
    assert text.isascii()


def test_the_record_is_bounded_and_the_oldest_go_first() -> None:
    made, log = placing(capacity=4)
    for number in range(10):
        placed = made.place(batch(f"r{number}"))
        assert placed is not None
        placed.reservation.release()
    assert len(log) == 4
    assert log.find("r5") is None
    assert [found.request_ids for found in log.latest(9)] == [("r9",), ("r8",), ("r7",), ("r6",)]
    assert len(log._slots) == 4


def test_a_request_that_moved_is_explained_by_its_last_decision() -> None:
    made, log = placing(capacity=2)
    for excluded in ((), ("e0",)):
        made.place(batch("r"), excluded=excluded)
    made.place(batch("other"))
    found = log.find("r")
    assert found is not None
    assert found.pick.executor == "e1"


def test_an_explanation_names_executors_that_have_left_since() -> None:
    made, log = placing()
    made.place(batch("r"))
    made.lost("e0")
    made.table.add(Executor("successor"))
    found = log.find("r")
    assert found is not None
    assert found.pick.executor == "e0"


def test_strategies_without_terms_are_explained_too() -> None:
    made, log = placing()
    made.strategies.switch("random")
    made.place(batch("r"))
    found = log.find("r")
    assert found is not None
    assert found.compact().startswith(f"executor={found.pick.executor};strategy=random;of=3")


def test_an_only_executor_is_not_compared_with_anybody() -> None:
    made, log = placing(executors=1, slots=2, capacity=4)
    for name in ("first", "second"):
        placed = made.place(batch(name), now_ns=7)
        assert placed is not None
        assert (placed.executor, placed.scores) == ("e0", {})
    found = log.find("second")
    assert found is not None
    assert (found.considered, found.eligible, found.decided_ns) == (1, 1, 7)
    assert [(o.executor, o.scores, o.room) for o in found.options] == [("e0", {}, True)]
    assert found.compact() == "executor=e0;strategy=topo_aware;of=1;closed_by=rows"
    assert made.table.batches_in_flight("e0") == 2
    assert made.place(batch("third")) is None
    assert made.place(batch("third"), excluded=["e0"]) is None


def test_records_of_one_and_of_many_do_not_mix() -> None:
    made, log = placing(executors=3, capacity=2)
    for name in ("a", "b", "c"):
        made.place(batch(name))
    for executor in ("e1", "e2"):
        made.table.remove(executor)
    made.place(batch("d"))
    found = log.find("d")
    assert found is not None
    assert [o.executor for o in found.options] == ["e0"]
    assert log.find("b") is None
    assert len(log.latest(9)) == 2
