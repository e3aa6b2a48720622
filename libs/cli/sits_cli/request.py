"""A request as tritonclient takes it, made of what the user wrote, and its answer shown."""

from collections.abc import Sequence

import numpy as np
import typer
from tritonclient import grpc as triton

from sits_cli import front, tensors
from sits_cli.client import CliError
from sits_cli.output import print_table, say
from sits_cli.tensors import Array, WrongInput

SHOWN_VALUES = 8


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


def requested(
    metadata: front.Message, names: Sequence[str], classes: int
) -> list[triton.InferRequestedOutput]:
    """Naming no output asks for all of them; classes have to be asked for by name."""
    every = [tensor.name for tensor in metadata.outputs] if classes else []
    return [triton.InferRequestedOutput(name, class_count=classes) for name in names or every]


def as_dict(answer: front.Message) -> dict[str, object]:
    response = answer.get_response()
    return {
        "model": response.model_name,
        "version": response.model_version,
        "outputs": {name: _plain(array) for name, array in _arrays(answer).items()},
    }


def show(answer: front.Message) -> None:
    response, arrays = answer.get_response(), _arrays(answer)
    rows = [
        (o.name, o.datatype, "×".join(map(str, o.shape)), _shown(arrays[o.name]))
        for o in response.outputs
    ]
    say(f"[bold]{response.model_name}[/] version {response.model_version}\n")
    print_table(("output", "type", "shape", "values"), rows)


def _input(tensor: front.Message, array: Array) -> triton.InferInput:
    made = triton.InferInput(tensor.name, array.shape, tensor.datatype)
    made.set_data_from_numpy(np.asarray(array, order="C"))
    return made


def _wanted(metadata: front.Message) -> str:
    return ", ".join(map(front.signature, metadata.inputs))


def _arrays(answer: front.Message) -> dict[str, Array]:
    outputs = answer.get_response().outputs
    arrays = {output.name: answer.as_numpy(output.name) for output in outputs}
    missing = [name for name, array in arrays.items() if array is None]
    if missing:
        raise CliError(f"the answer has no data for output {missing[0]!r}")
    return arrays


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
