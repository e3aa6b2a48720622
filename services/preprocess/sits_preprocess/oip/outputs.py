"""The outputs a request asks for: which, as classes or whole, inline or in shared memory."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sits_core.errors import InvalidArgument
from sits_preprocess.oip.contents import names_text
from sits_preprocess.oip.limits import MAX_NAME_CHARS, check_name
from sits_preprocess.oip.signature import Signature
from sits_preprocess.region import Borrowed
from sits_preprocess.shared_memory import Regions
from sits_protos.oip.grpc_service_pb2 import InferParameter, ModelInferRequest

Requested = ModelInferRequest.InferRequestedOutputTensor
Parameters = Mapping[str, InferParameter]


class RegionRange(NamedTuple):
    """Part of a client's shared-memory region, as tensor parameters name it."""

    region: str
    offset: int
    byte_size: int


class Wanted(NamedTuple):
    """`position` in the model's output list. `classes` 0 = the tensor itself.
    `target` None = inline."""

    name: str
    position: int
    classes: int = 0
    place: RegionRange | None = None
    target: Borrowed | None = None


def read_outputs(
    requested: Sequence[Requested], signature: Signature, regions: Regions
) -> list[Wanted]:
    """Borrows the shared memory it names: the caller releases every `target`."""
    wanted: list[Wanted] = []
    try:
        for output in requested:
            index = output_index(signature, output.name)
            if any(other.position == index for other in wanted):
                raise InvalidArgument(f"output '{output.name}' already requested")
            wanted.append(_read(output, index, regions))
    except BaseException:
        release(wanted)
        raise
    return wanted


def output_index(signature: Signature, name: str) -> int:
    index = signature.outputs.get(name)
    if index is None:
        check_name("output name", name)
        raise InvalidArgument(
            f"unexpected inference output '{name}' for model '{signature.model.name}', "
            f"expected {names_text(signature.outputs)}"
        )
    return index


def release(wanted: Sequence[Wanted]) -> None:
    for output in wanted:
        if output.target is not None:
            output.target.release()


def _read(output: Requested, index: int, regions: Regions) -> Wanted:
    if not output.parameters:
        return Wanted(output.name, index)
    classes = _classes(output)
    place = region_range(output.name, output.parameters)
    if place is None:
        return Wanted(output.name, index, classes)
    if classes:
        raise InvalidArgument(
            f"output '{output.name}': shared memory can't be used with classification"
        )
    return Wanted(output.name, index, 0, place, regions.borrow(*place))


def _classes(output: Requested) -> int:
    if "classification" not in output.parameters:
        return 0
    parameter = output.parameters["classification"]
    if parameter.WhichOneof("parameter_choice") != "int64_param" or parameter.int64_param <= 0:
        raise InvalidArgument(
            f"invalid value for 'classification' parameter of output '{output.name}', expected "
            "int64_param > 0."
        )
    return parameter.int64_param


def region_range(tensor: str, parameters: Parameters) -> RegionRange | None:
    """The shared memory that a tensor's parameters name, if they do."""
    if "shared_memory_region" not in parameters:
        if "shared_memory_byte_size" in parameters or "shared_memory_offset" in parameters:
            raise InvalidArgument(
                f"'shared_memory_region' parameter must be given for tensor '{tensor}' when "
                "'shared_memory_byte_size' or 'shared_memory_offset' is"
            )
        return None
    parameter = parameters["shared_memory_region"]
    if parameter.WhichOneof("parameter_choice") != "string_param":
        raise InvalidArgument(
            "invalid value type for 'shared_memory_region' parameter for tensor "
            f"'{tensor}', expected string_param."
        )
    region = parameter.string_param
    check_name("shared memory region name", region, MAX_NAME_CHARS)
    size = _whole(tensor, parameters, "shared_memory_byte_size")
    if size is None:
        raise InvalidArgument(
            f"'shared_memory_byte_size' must be specified along with 'shared_memory_region' "
            f"for tensor '{tensor}'"
        )
    return RegionRange(region, _whole(tensor, parameters, "shared_memory_offset") or 0, size)


def _whole(tensor: str, parameters: Parameters, key: str) -> int | None:
    if key not in parameters:
        return None
    parameter = parameters[key]
    if parameter.WhichOneof("parameter_choice") != "int64_param" or parameter.int64_param < 0:
        raise InvalidArgument(
            f"invalid value for '{key}' parameter for tensor '{tensor}', expected int64_param >= 0."
        )
    return parameter.int64_param
