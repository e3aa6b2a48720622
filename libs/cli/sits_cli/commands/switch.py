"""`sits switch`: another placement strategy while requests run."""

from typing import Annotated

import typer

from sits_cli import complete
from sits_cli.client import TIMEOUT_S, reached, tokens
from sits_cli.options import DEFAULT_DISPATCHER, Dispatcher, Json, dispatcher_place
from sits_cli.output import literal, print_json, say
from sits_protos.v1.control_pb2 import SetStrategyRequest
from sits_protos.v1.control_pb2_grpc import ControlStub


def switch(
    strategy: Annotated[
        str,
        typer.Argument(
            help="such as topo_aware; `sits status` lists them", autocompletion=complete.strategies
        ),
    ],
    model: Annotated[
        str,
        typer.Option(
            "--model", metavar="NAME", help="only for this model", autocompletion=complete.models
        ),
    ] = "",
    dispatcher: Dispatcher = DEFAULT_DISPATCHER,
    as_json: Json = False,
) -> None:
    """Choose how the dispatcher places batches. Loses no request."""
    request = SetStrategyRequest(strategy=strategy, model=model)
    with reached(dispatcher_place(dispatcher)) as channel:
        answer = ControlStub(channel).SetStrategy(request, timeout=TIMEOUT_S, metadata=tokens())
    if as_json:
        print_json({"model": model, "previous": answer.previous, "current": answer.current})
        return
    scope = f"model {model}" if model else "all models"
    say(f"{literal(scope)}: {literal(answer.previous)} → [bold]{literal(answer.current)}[/]")
