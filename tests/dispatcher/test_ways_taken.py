"""How much of the time tensors take the ways to executors, as governance sees it."""

import pytest

from sits_dispatcher.ways_taken import WaysTaken
from sits_scheduling.affinity import HALF_COST_S, AffinityMap, Place
from sits_scheduling.candidates import Executor, ExecutorTable

S = 1_000_000_000
T = 1_700_000_000 * S
MB = 1_000_000
NEAR, FAR = Place("a", 0), Place("a", 1)
ELSEWHERE = Place("b", 0)


def weight(seconds_a_megabyte: float) -> float:
    return 1.0 / (1.0 + seconds_a_megabyte / HALF_COST_S)


@pytest.fixture
def table() -> ExecutorTable:
    made = ExecutorTable()
    for number in range(2):
        made.add(Executor(f"gpu-{number}", "a", f"GPU-{number}"))
    made.set_affinity(
        AffinityMap(
            {
                "a": {
                    ("cpu:0", "GPU-0"): weight(50e-6),
                    ("cpu:1", "GPU-0"): weight(100e-6),
                    ("cpu:0", "GPU-1"): weight(50e-6),
                }
            }
        )
    )
    return made


def share(table: ExecutorTable, totals: dict[tuple[Place, str], int]) -> float:
    """After a second in which so much moved."""
    ways = WaysTaken()
    ways.share({}, table.affinity, T)
    return ways.share(totals, table.affinity, T + S)


def test_it_is_bytes_over_what_the_way_carries(table: ExecutorTable) -> None:
    assert share(table, {(NEAR, "gpu-0"): 2000 * MB}) == pytest.approx(0.1, rel=1e-3)


def test_all_that_goes_to_an_executor_adds_up_and_the_busiest_counts(table: ExecutorTable) -> None:
    totals = {(NEAR, "gpu-0"): 2000 * MB, (FAR, "gpu-0"): 2000 * MB, (NEAR, "gpu-1"): 4000 * MB}
    assert share(table, totals) == pytest.approx(0.3, rel=1e-3)


def test_what_nothing_is_known_of_takes_nothing(table: ExecutorTable) -> None:
    totals = {(ELSEWHERE, "gpu-0"): 9000 * MB, (FAR, "gpu-1"): 9000 * MB, (NEAR, "gone"): 9000 * MB}
    assert share(table, totals) == 0.0


def test_only_what_moved_since_the_last_look_counts(table: ExecutorTable) -> None:
    ways, totals = WaysTaken(), {(NEAR, "gpu-0"): 2000 * MB}
    assert ways.share(totals, table.affinity, T) == 0.0
    assert ways.share(totals, table.affinity, T + S) == 0.0
    more = {(NEAR, "gpu-0"): 3000 * MB}
    assert ways.share(more, table.affinity, T + 2 * S) == pytest.approx(0.05, rel=1e-3)


def test_it_is_never_more_than_all_of_the_time(table: ExecutorTable) -> None:
    assert share(table, {(FAR, "gpu-0"): 90_000 * MB}) == 1.0


def test_an_executor_that_left_and_came_back_does_not_count_backwards(table: ExecutorTable) -> None:
    ways = WaysTaken()
    ways.share({(NEAR, "gpu-0"): 9000 * MB}, table.affinity, T)
    assert ways.share({(NEAR, "gpu-0"): 1 * MB}, table.affinity, T + S) == pytest.approx(
        0.00005, rel=1e-2
    )
