"""Input stage: the columns of a batch become arrays, without a copy where that is possible."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from sits_core import datatypes
from sits_core.datatypes import BYTES, NUMPY_TYPES, Array
from sits_core.errors import InvalidArgument
from sits_executor.batch import Span
from sits_executor.contract import Contract, TensorContract, fits, reshaped
from sits_protos.v1.common_pb2 import PayloadRef, Tensor

ReadPayload = Callable[[PayloadRef], memoryview]
"""Raises `SitsError` when the slot is gone."""


def stage(
    tensors: Iterable[Tensor], contract: Contract, rows: int, read: ReadPayload
) -> dict[str, Array]:
    """Arrays by name, as the model wants them. Raises `InvalidArgument` when they do not fit."""
    if contract.batches and rows > contract.max_rows:
        raise InvalidArgument(
            f"batch has {rows} rows, model '{contract.model}' takes at most {contract.max_rows}"
        )
    arrays: dict[str, Array] = {}
    for tensor in tensors:
        expected = contract.inputs.get(tensor.name)
        if expected is None or tensor.name in arrays:
            problem = "is not one of the model's" if expected is None else "came twice"
            raise InvalidArgument(f"input '{tensor.name}' {problem}")
        arrays[tensor.name] = _array(tensor, expected, contract, rows, read)
    _require_all(arrays, contract)
    return arrays


def select(arrays: dict[str, Array], spans: Sequence[Span], rows: int) -> dict[str, Array]:
    """Only these rows. All of them = the arrays themselves; one span = views."""
    if sum(span.stop - span.start for span in spans) == rows:
        return arrays
    if len(spans) == 1:
        (span,) = spans
        return {name: array[span.start : span.stop] for name, array in arrays.items()}
    return {
        name: np.concatenate([array[span.start : span.stop] for span in spans])
        for name, array in arrays.items()
    }


def _array(
    tensor: Tensor, expected: TensorContract, contract: Contract, rows: int, read: ReadPayload
) -> Array:
    shape = tuple(tensor.shape[:])
    lead = (rows,) if contract.batches else ()
    if tensor.datatype != expected.datatype:
        raise InvalidArgument(
            f"input '{tensor.name}' is {tensor.datatype}, model expects {expected.datatype}"
        )
    if shape[: len(lead)] != lead or not fits(shape[len(lead) :], expected.dims):
        raise InvalidArgument(
            f"input '{tensor.name}' has shape {list(shape)}, "
            f"expected {[*lead, *expected.dims]} (-1 = any size)"
        )
    array = _decode(tensor, shape, read)
    if expected.inner is None:
        return array
    return array.reshape(lead + reshaped(shape[len(lead) :], expected.dims, expected.inner))


def _decode(tensor: Tensor, shape: tuple[int, ...], read: ReadPayload) -> Array:
    data = read(tensor.reference) if tensor.HasField("reference") else tensor.inline
    count = _count(tensor.name, shape)
    if tensor.datatype == BYTES:
        return _decode_bytes(tensor.name, data, shape, count)
    expected = count * NUMPY_TYPES[tensor.datatype].itemsize
    if len(data) != expected:
        raise InvalidArgument(f"input '{tensor.name}' needs {expected} bytes, got {len(data)}")
    return datatypes.decode(data, tensor.datatype, shape)


def _decode_bytes(name: str, data: bytes | memoryview, shape: tuple[int, ...], count: int) -> Array:
    elements = datatypes.decode_bytes(data)
    if len(elements) != count:
        raise InvalidArgument(f"input '{name}' needs {count} elements, got {len(elements)}")
    flat = np.empty(count, dtype=object)
    flat[:] = elements
    return flat.reshape(shape)


def _count(name: str, shape: tuple[int, ...]) -> int:
    """Python integers do not wrap round; negative sizes are refused before multiplying."""
    count = 1
    for dim in shape:
        if dim < 0:
            raise InvalidArgument(f"input '{name}' has a negative size in {list(shape)}")
        count *= dim
    return count


def _require_all(arrays: dict[str, Array], contract: Contract) -> None:
    missing = [
        name
        for name, expected in contract.inputs.items()
        if not expected.optional and name not in arrays
    ]
    if missing:
        raise InvalidArgument(f"input '{missing[0]}' of model '{contract.model}' is missing")
