"""Checks of a request's inputs against the model: names, datatypes, shapes, sizes, rows."""

import math
from collections.abc import Mapping, Sequence

from sits_core.datatypes import BYTES
from sits_core.errors import InvalidArgument
from sits_preprocess.oip.contents import check_bytes, names_text
from sits_preprocess.oip.limits import MAX_ELEMENTS, MAX_RANK, dims_text
from sits_preprocess.oip.signature import InputSpec, Signature
from sits_preprocess.request import TensorData

_BATCH_NOTE = (
    ". NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to "
    "be prepended to each input shape. If you want to specify the full shape including the batch "
    "dim in your input dims config, try setting max_batch_size to zero"
)


def check_rank(name: str, rank: int) -> None:
    """Before the shape is copied out of the message."""
    if rank > MAX_RANK:
        raise InvalidArgument(
            f"input {name[:80]!r} has {rank} dimensions, expected at most {MAX_RANK}"
        )


def check_declared(
    signature: Signature, name: str, datatype: str, shape: tuple[int, ...]
) -> InputSpec:
    """Name, datatype and shape of one input, before its data is touched."""
    model = signature.model.name
    spec = signature.inputs.get(name)
    if spec is None:
        raise InvalidArgument(
            f"unexpected inference input '{name}' for model '{model}', "
            f"expected {names_text(signature.inputs)}"
        )
    if datatype != spec.datatype:
        raise InvalidArgument(
            f"inference input '{name}' data-type is '{datatype}', but model '{model}' expects "
            f"'{spec.datatype}'"
        )
    _check_shape(signature, spec, shape)
    return spec


def _check_shape(signature: Signature, spec: InputSpec, shape: tuple[int, ...]) -> None:
    model, batching = signature.model.name, signature.max_batch_size > 0
    if batching and not shape:
        raise InvalidArgument(
            f"input '{spec.name}' has no shape but model requires batch dimension for '{model}'"
        )
    _check_magnitude(model, spec.name, shape)
    fits = len(shape) == len(spec.dims) and all(
        want in (-1, got) for want, got in zip(spec.dims, shape, strict=True)
    )
    if not fits:
        raise InvalidArgument(
            f"unexpected shape for input '{spec.name}' for model '{model}'. Expected "
            f"{dims_text(spec.dims)}, got {dims_text(shape)}{_BATCH_NOTE if batching else ''}"
        )


def _check_magnitude(model: str, name: str, shape: tuple[int, ...]) -> None:
    if shape and min(shape) < 0:
        raise InvalidArgument(
            f"unexpected shape for input '{name}' for model '{model}'. Expected every dimension "
            f"to be 0 or more, got {dims_text(shape)}"
        )
    if math.prod(shape if 0 not in shape else [dim or 1 for dim in shape]) > MAX_ELEMENTS:
        raise InvalidArgument(
            f"unexpected shape for input '{name}' for model '{model}'. Expected at most "
            f"{MAX_ELEMENTS} elements, got {dims_text(shape)}"
        )


def check_data(signature: Signature, spec: InputSpec, tensor: TensorData) -> None:
    """The data must have exactly the size that datatype and shape declare."""
    if spec.datatype == BYTES:
        elements = math.prod(tensor.shape)
        check_bytes(spec.name, signature.model.name, tensor.data, elements)
    else:
        check_size(signature, spec, tensor.shape, len(tensor.data))


def check_size(
    signature: Signature, spec: InputSpec, shape: tuple[int, ...], size_bytes: int
) -> None:
    """Whether so many bytes can be such a tensor; those of BYTES must be looked at as well."""
    if spec.element_bytes is None:
        return
    expected = math.prod(shape) * spec.element_bytes
    if size_bytes != expected:
        raise InvalidArgument(
            f"input byte size mismatch for input '{spec.name}' for model "
            f"'{signature.model.name}'. Expected {expected}, got {size_bytes}"
        )


def in_model_order(signature: Signature, tensors: list[TensorData]) -> tuple[TensorData, ...]:
    """All of a request's inputs in the model's order, so that clients who list them in
    another order still share batches. Raises when one is missing or there twice."""
    by_name = {tensor.name: tensor for tensor in tensors}
    if len(by_name) != len(tensors):
        names = [tensor.name for tensor in tensors]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidArgument(f"input '{twice}' already exists in request")
    if not signature.required <= by_name.keys():
        raise _missing(signature, by_name)
    if len(tensors) < 2:
        return tuple(tensors)
    return tuple([by_name[name] for name in signature.inputs if name in by_name])


def _missing(signature: Signature, given: Mapping[str, TensorData]) -> InvalidArgument:
    least, most = len(signature.required), len(signature.inputs)
    count = f"{most} inputs" if least == most else f"number of inputs between {least} and {most}"
    return InvalidArgument(
        f"expected {count} but got {len(given)} inputs for model '{signature.model.name}'. "
        f"Got input(s) {names_text(given)}, but missing required input(s) "
        f"{names_text(signature.required - given.keys())}. Please provide all required input(s)."
    )


def rows_of(signature: Signature, tensors: Sequence[TensorData]) -> int:
    """Rows of the request: the first dimension all inputs share; 1 without batching."""
    if signature.max_batch_size <= 0 or not tensors:
        return 1
    rows, model = tensors[0].shape[0], signature.model.name
    for tensor in tensors:
        if tensor.shape[0] != rows:
            raise InvalidArgument(
                f"input '{tensor.name}' batch size does not match other inputs for '{model}': "
                f"expected {rows} rows as in '{tensors[0].name}', got {tensor.shape[0]}"
            )
    if not 1 <= rows <= signature.max_batch_size:
        raise InvalidArgument(
            f"inference request batch-size must be <= {signature.max_batch_size} for '{model}' "
            f"and at least 1, got {rows}"
        )
    return rows
