"""The shell offers what the mesh knows."""

import typer
import typer.core

from sits_cli import complete
from sits_cli.testing import FakeControl
from sits_protos.v1.control_pb2 import GetStateResponse
from sits_protos.v1.link_pb2 import ModelEntry

STATE = GetStateResponse(
    strategies=["fifo", "priority", "power_of_two"],
    models=[ModelEntry(name="mlp", version="1"), ModelEntry(name="mlp", version="2")],
)


def context(address: str) -> typer.Context:
    made = typer.Context(typer.core.TyperCommand("switch"))
    made.params["dispatcher"] = address
    return made


def test_strategies_and_models_of_the_dispatcher_that_is_named(serve) -> None:
    at = context(serve(FakeControl(STATE)))
    assert complete.strategies(at, "p") == ["power_of_two", "priority"]
    assert complete.models(at, "") == ["mlp"]
    assert complete.models(at, "x") == []


def test_without_a_mesh_nothing_is_offered() -> None:
    assert complete.strategies(context("127.0.0.1:1"), "") == []
