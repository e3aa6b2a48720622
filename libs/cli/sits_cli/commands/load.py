"""`sits models load` and `unload`: on every executor of the mesh, and how far it is."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import grpc
import typer
from rich.text import Text

from sits_cli import complete
from sits_cli.client import TIMEOUT_S, CliError, did_you_mean, reached, rpc_failed, tokens
from sits_cli.options import DEFAULT_DISPATCHER, Dispatcher, Json, dispatcher_place
from sits_cli.output import console, count, duration, literal, print_json, say
from sits_protos.v1 import control_pb2 as pb
from sits_protos.v1.control_pb2_grpc import ControlStub
from sits_protos.v1.link_pb2 import ModelState, Role

POLL_S = 0.1
SETTLE_S = 2.0
"""The dispatcher hears of a change a moment after the executors answered."""
READY = ModelState.MODEL_STATE_READY

Name = Annotated[
    str,
    typer.Argument(help="its folder in the model repository", autocompletion=complete.models),
]
Timeout = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=1, help="longest wait for it")
]
Start = Callable[[ControlStub], "grpc.CallFuture[Any]"]


@dataclass(frozen=True, slots=True)
class Version:
    version: str
    state: str
    reason: str


def load(
    name: Name,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="JSON of a ModelConfig in place of config.pbtxt",
                     exists=True, dir_okay=False),
    ] = None,
    timeout_s: Timeout = 600.0,
    dispatcher: Dispatcher = DEFAULT_DISPATCHER,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Load a model, or load it anew, on every executor."""
    text = "" if config is None else config.read_text()
    request = pb.LoadModelRequest(model=name, config_json=text)

    def start(stub: ControlStub) -> "grpc.CallFuture[Any]":
        return stub.LoadModel.future(request, timeout=timeout_s, metadata=tokens())

    everywhere(name, "load", start, dispatcher, as_json=as_json)


def unload(
    name: Name,
    timeout_s: Timeout = 600.0,
    dispatcher: Dispatcher = DEFAULT_DISPATCHER,
    as_json: Json = False,
) -> None:
    """Unload a model on every executor; what it runs is finished first."""
    request = pb.UnloadModelRequest(model=name)

    def start(stub: ControlStub) -> "grpc.CallFuture[Any]":
        return stub.UnloadModel.future(request, timeout=timeout_s, metadata=tokens())

    everywhere(name, "unload", start, dispatcher, as_json=as_json)


def everywhere(name: str, verb: str, start: Start, dispatcher: str, *, as_json: bool) -> None:
    """Start it, show how it goes, tell how it ended. Raises `CliError`."""
    started_s = time.monotonic()
    place = dispatcher_place(dispatcher)
    with reached(place) as channel:
        stub = ControlStub(channel)
        state = _state(stub)
        executors = sum(p.hello.role == Role.ROLE_EXECUTOR for p in state.peers)
        try:
            _follow(start(stub), f"{verb}ing {name} on {count(executors, 'executor')}", started_s)
        except grpc.RpcError as error:
            raise rpc_failed(error, place, _instead_of(name, error, state)) from None
        versions = _settled(stub, name, ready=verb == "load")
    took_s = time.monotonic() - started_s
    if as_json:
        print_json({"model": name, "action": f"{verb}ed", "executors": executors,
                    "took_s": took_s, "versions": [asdict(v) for v in versions]})  # fmt: skip
        return
    listed = ", ".join(f"version {v.version} {v.state}" for v in versions) or "no version left"
    where = count(executors, "executor")
    say(f"[bold]{literal(name)}[/] {verb}ed on {where} in {duration(took_s)}: {literal(listed)}")


def _follow(call: "grpc.CallFuture[Any]", title: str, started_s: float) -> None:
    """Until it is done, or Ctrl-C: the executors then go on by themselves."""
    with console(stderr=True).status(literal(title)) as spinner:
        try:
            while not call.done():
                time.sleep(POLL_S)
                spinner.update(Text(f"{title}, {duration(time.monotonic() - started_s)}"))
        except KeyboardInterrupt:
            raise CliError(
                "not waited for any longer, the executors go on: `sits models` shows the state"
            ) from None
    call.result()


def _instead_of(name: str, error: grpc.RpcError, state: pb.GetStateResponse) -> str:
    """A hint when `name` is not there, as far as the dispatcher knows the others."""
    code: grpc.StatusCode | None = getattr(error, "code", lambda: None)()
    unknown = code is grpc.StatusCode.NOT_FOUND
    return did_you_mean(name, (model.name for model in state.models)) if unknown else ""


def _settled(stub: ControlStub, name: str, *, ready: bool) -> list[Version]:
    """The versions once the dispatcher has heard, or as they are after `SETTLE_S`."""
    give_up_s = time.monotonic() + SETTLE_S
    while True:
        found = [entry for entry in _state(stub).models if entry.name == name]
        done = any(e.state == READY for e in found) is ready
        if done or time.monotonic() > give_up_s:
            break
        time.sleep(POLL_S)
    return [
        Version(e.version, ModelState.Name(e.state).removeprefix("MODEL_STATE_").lower(), e.reason)
        for e in found
    ]


def _state(stub: ControlStub) -> pb.GetStateResponse:
    return stub.GetState(pb.GetStateRequest(), timeout=TIMEOUT_S, metadata=tokens())
