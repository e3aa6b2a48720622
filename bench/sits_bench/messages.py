"""Request bodies: one inference in the form each kind of server takes."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sits_core import datatypes
from sits_protos.oip.grpc_service_pb2 import InferParameter, ModelInferRequest

Array = npt.NDArray[Any]
ParameterValue = bool | int | str

_HEAD = struct.Struct("<II")


class Region(NamedTuple):
    """Shared memory that the client has registered, and how much of it a tensor takes."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Inference:
    """What is asked: arrays by input name. `kind` groups latencies in the results.

    Inputs in `input_regions` lie in shared memory; outputs in `output_regions` are wanted there.
    """

    model: str
    inputs: Mapping[str, Array]
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    kind: int = 0
    input_regions: Mapping[str, Region] = field(default_factory=dict)
    output_regions: Mapping[str, Region] = field(default_factory=dict)

    def grpc(self) -> bytes:
        """A serialized `inference.ModelInferRequest`."""
        message = ModelInferRequest(model_name=self.model)
        for name, array in self.inputs.items():
            tensor = message.inputs.add(
                name=name, datatype=datatypes.from_numpy(array.dtype), shape=array.shape
            )
            if name in self.input_regions:
                _place(tensor.parameters, self.input_regions[name])
            else:
                message.raw_input_contents.append(array.tobytes())
        for name, region in self.output_regions.items():
            _place(message.outputs.add(name=name).parameters, region)
        for name, value in self.parameters.items():
            _set(message.parameters[name], value)
        return message.SerializeToString()

    def raw(self) -> bytes:
        """Just the bytes of the inputs, for servers whose protocol has no more than that."""
        return b"".join(array.tobytes() for array in self.inputs.values())


def _place(parameters: Any, region: Region) -> None:
    parameters["shared_memory_region"].string_param = region.name
    parameters["shared_memory_byte_size"].int64_param = region.size_bytes


def _set(parameter: InferParameter, value: ParameterValue) -> None:
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        parameter.int64_param = value
    else:
        parameter.string_param = value


def write(path: Path, inferences: Sequence[Inference], *, raw: bool = False) -> Path:
    """The load generator's request file, see loadgen.c."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for inference in inferences:
            body = inference.raw() if raw else inference.grpc()
            file.write(_HEAD.pack(inference.kind, len(body)))
            file.write(body)
    return path


def random_floats(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)
