"""Strategies by name: what each decides, and switching between them."""

import random
from typing import Any

import pytest

from sits_scheduling.strategies import STRATEGIES, Strategy, factory
from sits_scheduling.switchboard import Switchboard


def board(default: str = "topo_aware", **custom: Any) -> Switchboard:
    return Switchboard(default, random.Random(1), custom)


def test_the_eight_strategies_name_an_order_and_a_placement() -> None:
    made = [STRATEGIES[name](random.Random(1)) for name in sorted(STRATEGIES)]
    assert [(s.name, s.order.name, s.placement.name) for s in made] == [
        ("deadline", "deadline", "topo_aware"),
        ("fifo", "fifo", "topo_aware"),
        ("least_loaded", "priority", "least_loaded"),
        ("power_of_two", "priority", "power_of_two"),
        ("priority", "priority", "topo_aware"),
        ("random", "priority", "random"),
        ("round_robin", "priority", "round_robin"),
        ("topo_aware", "priority", "topo_aware"),
    ]


def test_both_halves_can_be_named() -> None:
    naive = factory("fifo+random")
    assert naive is not None
    assert repr(naive(random.Random(1))) == "<Strategy fifo+random: fifo, random>"


@pytest.mark.parametrize(
    "name", ["", "fastest", "fifo+", "+random", "random+fifo", "fifo+random+x"]
)
def test_unknown_names_are_known_to_be_unknown(name: str) -> None:
    assert factory(name) is None
    assert not board().knows(name)


def test_a_switch_holds_for_one_model_or_for_all_others() -> None:
    strategies = board()
    assert strategies.switch("random", "mlp") == "topo_aware"
    assert strategies.switch("fifo") == "topo_aware"
    assert strategies.strategy("mlp").name == strategies.strategy("mlp/3").name == "random"
    assert strategies.strategy("other/1").name == "fifo"


def test_a_switch_keeps_the_turns_that_were_taken() -> None:
    strategies = board("round_robin")
    before = strategies.strategy("m/1")
    strategies.switch("random")
    strategies.switch("round_robin")
    assert strategies.strategy("m/1") is before


def test_custom_strategies_stand_beside_the_eight() -> None:
    def mine(rng: random.Random) -> Strategy:
        known = STRATEGIES["random"](rng)
        return Strategy("mine", known.order, known.placement)

    strategies = board("mine", mine=mine)
    assert strategies.strategy("m/1").name == "mine"
    assert "mine" in strategies.names()
