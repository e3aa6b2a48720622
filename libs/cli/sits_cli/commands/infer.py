"""`sits infer`: one request through the front door, and its answer."""

import secrets
from functools import partial
from typing import Annotated

import typer

from sits_cli import complete, front, spans
from sits_cli.commands import trace as trace_command
from sits_cli.options import (
    DEFAULT_DISPATCHER,
    DEFAULT_FRONT,
    DEFAULT_TOPOLOGY,
    Dispatcher,
    Front,
    Json,
    Topology,
    dispatcher_place,
    front_place,
    topology_place,
)
from sits_cli.output import print_json, say

TRACE_ID_BYTES, SPAN_ID_BYTES = 16, 8


def infer(
    model: Annotated[str, typer.Argument(
        help="as `sits models` names it", autocompletion=complete.models
    )],
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", "-i", metavar="NAME=JSON|@FILE",
                     help="a value; @FILE is .npy, .json or raw bytes"),
    ] = None,
    random: Annotated[
        bool, typer.Option("--random", help="random values for inputs that are not given")
    ] = False,
    outputs: Annotated[
        list[str] | None, typer.Option("--output", "-o", metavar="NAME", help="only this output")
    ] = None,
    version: Annotated[
        str, typer.Option(metavar="NUMBER", help="default: the newest ready one")
    ] = "",
    classes: Annotated[
        int,
        typer.Option("--classes", metavar="N", min=0, help="the N best classes, not the scores"),
    ] = 0,
    timeout_s: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", min=0.001, help="longest wait for the answer"),
    ] = 30.0,
    tenant: Annotated[
        str, typer.Option(metavar="NAME", help="whom the request is counted for")
    ] = "",
    traced: Annotated[
        bool, typer.Option("--trace", help="trace the request, then draw its stages")
    ] = False,
    address: Front = DEFAULT_FRONT,
    dispatcher: Dispatcher = DEFAULT_DISPATCHER,
    topology: Topology = DEFAULT_TOPOLOGY,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Send one request and print the answer."""
    from sits_cli import request  # with numpy, which other commands need not wait for

    trace_id = secrets.token_bytes(TRACE_ID_BYTES) if traced else b""
    with front.connected(front_place(address), model) as client:
        metadata = client.get_model_metadata(model, version)
        answer = client.infer(
            model,
            request.arrange(metadata, inputs or [], random=random),
            version,
            request.requested(metadata, outputs or [], classes),
            headers=headers(tenant, trace_id),
            client_timeout=timeout_s,
        )
    found = None
    if traced:
        places = spans.control_places(dispatcher_place(dispatcher), topology_place(topology))
        found = partial(trace_command.find_soon, places, trace_id)
    if as_json:
        more = {} if found is None else {"trace": trace_command.as_dict(found())}
        print_json(request.as_dict(answer) | more)
        return
    request.show(answer)
    if found is not None:
        say()
        trace_command.show(found(), as_json=False)


def headers(tenant: str, trace_id: bytes) -> dict[str, str]:
    found = {"sits-tenant": tenant} if tenant else {}
    if trace_id:
        span_id = secrets.token_hex(SPAN_ID_BYTES)
        found["traceparent"] = f"00-{trace_id.hex()}-{span_id}-01"
    return found
