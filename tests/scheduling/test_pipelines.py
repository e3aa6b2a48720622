"""Pipeline steps run next to their data; micro-batches fit into memory."""

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits_scheduling.micro_batches import micro_batch_rows, shrunk_rows
from sits_scheduling.pipelines import Step, best_path, costs_ahead

GIB = 1 << 30


def test_a_step_follows_its_data_unless_waiting_there_costs_more() -> None:
    free = Step(np.array([1000.0, 1000.0]), 64e6)
    hand_over = np.array([[0.0, 0.13e-3], [0.13e-3, 0.0]])  # µs a byte between two nodes
    near_first = np.array([0.0, 8_400.0])
    assert best_path([free, free], near_first, [hand_over], 20.0).choices == (0, 0)
    busy = Step(np.array([1000.0 + 8_000.0, 1000.0]), 64e6)
    assert best_path([free, busy], near_first, [hand_over], 20.0).choices == (0, 0)
    busier = Step(np.array([1000.0 + 9_000.0, 1000.0]), 64e6)
    assert best_path([free, busier], near_first, [hand_over], 20.0).choices == (0, 1)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 10_000))
def test_the_cheapest_path_is_found(steps: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    chain = [Step(rng.uniform(0, 100, count), rng.uniform(0, 100)) for _ in range(steps)]
    source = rng.uniform(0, 100, count)
    ways = [rng.uniform(0, 1, (count, count)) * rng.integers(0, 2, (count, count))
            for _ in range(steps - 1)]  # fmt: skip

    def cost(path: tuple[int, ...]) -> float:
        total = source[path[0]] + sum(s.cost_us[c] for s, c in zip(chain, path, strict=True))
        for (a, b), way, step in zip(pairwise(path), ways, chain[1:], strict=True):
            total += 5.0 + step.input_bytes * way[a, b] if way[a, b] > 0 else 0.0
        return float(total)

    best = min(cost(path) for path in product(range(count), repeat=steps))
    found = best_path(chain, source, ways, 5.0)
    assert found.total_us == pytest.approx(best)
    assert cost(found.choices) == pytest.approx(best)


@given(st.integers(2, 4), st.integers(1, 4), st.integers(0, 10_000))
def test_what_lies_ahead_leads_to_the_first_step_of_the_cheapest_path(
    steps: int, count: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    chain = [Step(rng.uniform(0, 100, count), rng.uniform(0, 100)) for _ in range(steps)]
    source = rng.uniform(0, 100, count)
    ways = [rng.uniform(0, 1, (count, count)) for _ in range(steps - 1)]
    total = source + chain[0].cost_us + costs_ahead(chain[1:], ways, 5.0)
    found = best_path(chain, source, ways, 5.0)
    assert total.min() == pytest.approx(found.total_us)
    assert total[found.choices[0]] == pytest.approx(total.min())


def test_micro_batches_are_sized_by_free_memory_between_8_and_64_rows() -> None:
    row = 64 << 20
    assert micro_batch_rows(80 * GIB, row) == 64
    assert micro_batch_rows(2 * GIB, row) == 24
    assert micro_batch_rows(0.6 * GIB, row) == 8
    assert micro_batch_rows(80 * GIB, 0) == 64


def test_pressure_shrinks_them_but_not_below_8() -> None:
    assert micro_batch_rows(80 * GIB, 0, factor=0.5) == 32
    assert micro_batch_rows(80 * GIB, 0, factor=0.01) == 8


def test_too_little_memory_still_runs_something() -> None:
    assert micro_batch_rows(0.1 * GIB, 64 << 20) == 1
    assert micro_batch_rows(0, 64 << 20) == 1


def test_a_model_with_a_small_limit_keeps_it() -> None:
    assert micro_batch_rows(80 * GIB, 0, most=4) == 4


def test_under_pressure_micro_batches_shrink_to_8_where_a_row_costs_the_same() -> None:
    def even(rows: int) -> float:
        return 1000.0

    def fixed(rows: int) -> float:
        return 20e6 / rows

    assert [shrunk_rows(rows, 0.5, even) for rows in (64, 16, 12, 8, 4, 1)] == [32, 8, 8, 8, 4, 1]
    assert shrunk_rows(64, 0.5, fixed) == 64, "half of the rows in the same time"
    assert shrunk_rows(64, 0.5, lambda rows: 0.0) == 32, "nothing is known"
