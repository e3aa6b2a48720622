"""`sits infer`: one request through the front door, and its answer."""

import secrets
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import numpy as np
import typer
from tritonclient import grpc as triton

from sits_cli import complete, front, spans, tensors
from sits_cli.client import CliError
from sits_cli.commands import trace as trace_command
from sits_cli.commands.models import signature
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
from sits_cli.output import print_json, print_table, say
from sits_cli.tensors import Array, WrongInput

SHOWN_VALUES = 8
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
    trace_id = secrets.token_bytes(TRACE_ID_BYTES) if traced else b""
    with front.connected(front_place(address), model) as client:
        metadata = client.get_model_metadata(model, version)
        answer = client.infer(
            model,
            arrange(metadata, inputs or [], random=random),
            version,
            [triton.InferRequestedOutput(name, class_count=classes)
             for name in outputs or _names(metadata.outputs, classes)],
            headers=headers(tenant, trace_id),
            client_timeout=timeout_s,
        )  # fmt: skip
    found = None
    if traced:
        places = spans.control_places(dispatcher_place(dispatcher), topology_place(topology))
        found = partial(trace_command.find_soon, places, trace_id)
    if as_json:
        more = {} if found is None else {"trace": trace_command.as_dict(found())}
        print_json(_as_dict(answer) | more)
        return
    _show(answer)
    if found is not None:
        say()
        trace_command.show(found(), as_json=False)


def arrange(
    metadata: front.Message, texts: Sequence[str], *, random: bool = False
) -> list[triton.InferInput]:
    """The inputs as tritonclient takes them; a wrong one is wrong usage."""
    try:
        given = tensors.assignments(texts)
        known = {tensor.name: tensor for tensor in metadata.inputs}
        for name in given.keys() - known.keys():
            raise WrongInput(f"no input {name!r}; {metadata.name} takes {_wanted(metadata)}")
        missing = [name for name in known if name not in given]
        if missing and not random:
            raise WrongInput(
                f"--input {missing[0]}=… is missing; {metadata.name} takes {_wanted(metadata)}. "
                "--random fills in what is missing"
            )
        arrays = {
            name: tensors.read(name, value, known[name].datatype, known[name].shape)
            for name, value in given.items()
        }
        arrays |= {n: tensors.random(known[n].datatype, known[n].shape) for n in missing}
    except WrongInput as error:
        raise typer.BadParameter(str(error)) from None
    return [_input(known[name], array) for name, array in arrays.items()]


def headers(tenant: str, trace_id: bytes) -> dict[str, str]:
    found = {"sits-tenant": tenant} if tenant else {}
    if trace_id:
        span_id = secrets.token_hex(SPAN_ID_BYTES)
        found["traceparent"] = f"00-{trace_id.hex()}-{span_id}-01"
    return found


def _input(tensor: front.Message, array: Array) -> triton.InferInput:
    made = triton.InferInput(tensor.name, array.shape, tensor.datatype)
    made.set_data_from_numpy(np.asarray(array, order="C"))
    return made


def _names(outputs: Sequence[front.Message], classes: int) -> list[str]:
    """Naming no output asks for all of them; classes have to be asked for by name."""
    return [tensor.name for tensor in outputs] if classes else []


def _wanted(metadata: front.Message) -> str:
    return ", ".join(map(signature, metadata.inputs))


def _arrays(answer: front.Message) -> dict[str, Array]:
    outputs = answer.get_response().outputs
    arrays = {output.name: answer.as_numpy(output.name) for output in outputs}
    missing = [name for name, array in arrays.items() if array is None]
    if missing:
        raise CliError(f"the answer has no data for output {missing[0]!r}")
    return arrays


def _as_dict(answer: front.Message) -> dict[str, object]:
    response = answer.get_response()
    return {
        "model": response.model_name,
        "version": response.model_version,
        "outputs": {name: _plain(array) for name, array in _arrays(answer).items()},
    }


def _show(answer: front.Message) -> None:
    response, arrays = answer.get_response(), _arrays(answer)
    rows = [
        (o.name, o.datatype, "×".join(map(str, o.shape)), _shown(arrays[o.name]))
        for o in response.outputs
    ]
    say(f"[bold]{response.model_name}[/] version {response.model_version}\n")
    print_table(("output", "type", "shape", "values"), rows)


def _plain(array: Array) -> object:
    """For JSON: bytes as text, one-to-one for any byte."""
    if array.dtype == np.object_:
        return np.vectorize(_text, otypes=[np.object_])(array).tolist()
    return array.tolist()


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


def _shown(array: Array) -> str:
    """The first few values of all."""
    flat = array.reshape(-1)
    first = [_text(v) if isinstance(v, bytes) else f"{v:.6g}" if isinstance(v, np.floating)
             else str(v) for v in flat[:SHOWN_VALUES]]  # fmt: skip
    return " ".join(first) + (f" … ({flat.size:,} values)" if flat.size > SHOWN_VALUES else "")
