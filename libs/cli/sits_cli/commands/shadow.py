"""`sits shadow`: let another strategy decide beside the one in force, and report the difference."""

from typing import Annotated

import typer

from sits_cli.client import TIMEOUT_S, reached, tokens
from sits_cli.options import DEFAULT_DISPATCHER, Dispatcher, Json, dispatcher_place
from sits_cli.output import literal, print_json, say
from sits_protos.v1.control_pb2 import GetStateRequest, SetShadowRequest, ShadowReport
from sits_protos.v1.control_pb2_grpc import ControlStub

OFF = "off"


def shadow(
    strategy: Annotated[
        str, typer.Argument(help="a strategy to try, `off` to end it; without one: the report")
    ] = "",
    dispatcher: Dispatcher = DEFAULT_DISPATCHER,
    as_json: Json = False,
) -> None:
    """Try a placement strategy on live requests without using it."""
    with reached(dispatcher_place(dispatcher)) as channel:
        stub = ControlStub(channel)
        if strategy:
            request = SetShadowRequest(strategy="" if strategy == OFF else strategy)
            before = stub.SetShadow(request, timeout=TIMEOUT_S, metadata=tokens()).report
        else:
            state = stub.GetState(GetStateRequest(), timeout=TIMEOUT_S, metadata=tokens())
            before = state.shadow
    if as_json:
        print_json(_plain(before) if before.strategy else None)
        return
    if before.strategy:
        say(_sentence(before))
    elif not strategy:
        say("No shadow: `sits shadow STRATEGY` starts one.")
    if strategy and strategy != OFF:
        say(f"[bold]{literal(strategy)}[/] decides in the shadow from now on.")


def _sentence(report: ShadowReport) -> str:
    """What the shadow saw, in one line."""
    agreed = report.agreed / report.decisions if report.decisions else 1.0
    verb = "saved" if report.gain_us >= 0 else "cost"
    return (
        f"[bold]{literal(report.strategy)}[/]: {report.decisions:,} decisions, {agreed:.1%} the "
        f"same; it would have {verb} {abs(report.gain_us):.1f} µs a decision (predicted)."
    )


def _plain(report: ShadowReport) -> dict[str, object]:
    return {
        "strategy": report.strategy,
        "decisions": report.decisions,
        "agreed": report.agreed,
        "gain_us": report.gain_us,
    }
