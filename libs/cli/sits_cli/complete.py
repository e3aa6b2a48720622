"""What the shell offers after <TAB>: names that the running mesh knows, and nothing without one."""

from collections.abc import Iterable
from contextlib import suppress

import grpc
import typer

from sits_cli.client import CliError, open_channel, tokens
from sits_cli.options import DEFAULT_DISPATCHER
from sits_protos.v1.control_pb2 import GetStateRequest, GetStateResponse
from sits_protos.v1.control_pb2_grpc import ControlStub

TIMEOUT_S = 1.0


def strategies(context: typer.Context, incomplete: str) -> list[str]:
    return _beginning(incomplete, _state(context).strategies)


def models(context: typer.Context, incomplete: str) -> list[str]:
    return _beginning(incomplete, {model.name for model in _state(context).models})


def _state(context: typer.Context) -> GetStateResponse:
    address = context.params.get("dispatcher") or DEFAULT_DISPATCHER
    with suppress(grpc.RpcError, CliError), open_channel(address) as channel:
        request = GetStateRequest()
        return ControlStub(channel).GetState(request, timeout=TIMEOUT_S, metadata=tokens())
    return GetStateResponse()


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))
