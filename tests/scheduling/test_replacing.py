"""What waits is spread by how fast it is worked off; what runs stays."""

import random

import pytest

from sits_scheduling.replacing import Held, surplus


def test_an_idle_executor_gets_half_of_what_the_other_holds() -> None:
    assert surplus([Held("full", 8, 1), Held("idle", 0, 1)]) == {"full": 4}


def test_what_is_even_is_left_alone() -> None:
    assert surplus([Held("a", 4, 1), Held("b", 4, 1)]) == {}
    assert surplus([Held("a", 5, 1), Held("b", 4, 1)]) == {}


def test_a_slow_executor_holds_less() -> None:
    assert surplus([Held("slow", 6, 1, 3.0), Held("b", 6, 1)]) == {"slow": 3}


def test_alone_it_keeps_everything() -> None:
    assert surplus([Held("only", 50, 2)]) == {}
    assert surplus([]) == {}


@pytest.mark.parametrize("seed", range(50))
def test_nobody_gives_back_what_runs_and_once_is_enough(seed: int) -> None:
    rng = random.Random(seed)
    held = [
        Held(str(n), rng.randrange(20), rng.randint(1, 3), rng.choice([0.5, 1.0, 4.0]))
        for n in range(rng.randint(1, 8))
    ]
    gave = surplus(held)
    left = [one._replace(batches=one.batches - gave.get(one.executor, 0)) for one in held]
    assert all(one.batches >= min(before.batches, one.parallel)
               for one, before in zip(left, held, strict=True))  # fmt: skip
    assert sum(gave.values()) <= sum(one.batches for one in held)
