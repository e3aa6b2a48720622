"""Output stage: what a model returned is checked against its contract and packed for the wire."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from sits_core import datatypes
from sits_core.datatypes import BYTES, NUMPY_TYPES, Array
from sits_core.errors import Internal
from sits_executor.backends.base import Arrays
from sits_executor.contract import Contract, TensorContract, fits, reshaped
from sits_protos.v1.common_pb2 import PayloadRef, Tensor

Columns = tuple[Array, ...]
"""One array an output, in the model's output order."""

Reserve = Callable[[int], tuple[memoryview, PayloadRef] | None]
"""Room for an output of so many bytes in shared memory; None = send it inline."""


class BadResult(Internal):
    """The model returned something else than it declares."""

    reason = "BAD_RESULT"


def check(outputs: Arrays, contract: Contract, rows: int) -> Columns:
    """Every declared output, with its declared type, rows and shape. Raises `BadResult`."""
    return tuple([_checked(outputs, expected, contract, rows) for expected in contract.outputs])


def join(parts: Sequence[Columns], contract: Contract) -> Columns:
    """Columns of several runs, one after the other. Raises `BadResult` when they do not fit."""
    try:
        return tuple(np.concatenate(column) for column in zip(*parts, strict=True))
    except ValueError:
        raise BadResult(
            f"model '{contract.model}' returned other shapes for requests it ran one by one"
        ) from None


def pack(
    columns: Columns, contract: Contract, request_rows: Sequence[int], reserve: Reserve
) -> list[Tensor]:
    """`request_rows` are the rows of each request in the columns, in order."""
    return [
        _packed(array, expected, contract, request_rows, reserve)
        for array, expected in zip(columns, contract.outputs, strict=True)
    ]


def _checked(outputs: Arrays, expected: TensorContract, contract: Contract, rows: int) -> Array:
    where = f"model '{contract.model}' output '{expected.name}'"
    if expected.name not in outputs:
        raise BadResult(f"{where} is missing from what the model returned")
    array = np.asarray(outputs[expected.name])
    if (datatype := _datatype(array)) != expected.datatype:
        raise BadResult(f"{where} came as {datatype}, declared is {expected.datatype}")
    lead = (rows,) if contract.batches else ()
    inner = expected.dims if expected.inner is None else expected.inner
    if array.shape[: len(lead)] != lead or not fits(array.shape[len(lead) :], inner):
        raise BadResult(
            f"{where} came with shape {list(array.shape)}, declared is {[*lead, *inner]}"
        )
    if expected.inner is None:
        return array
    return array.reshape(lead + reshaped(array.shape[len(lead) :], inner, expected.dims))


def _datatype(array: Array) -> str:
    """Only arrays of text or bytes are BYTES: `object` alone says nothing."""
    try:
        datatype = datatypes.from_numpy(array.dtype)
    except TypeError:
        return str(array.dtype)
    if array.dtype.kind == "O" and not all(isinstance(e, bytes | str) for e in array.flat):
        return "Python objects"
    return datatype


def _packed(
    array: Array,
    expected: TensorContract,
    contract: Contract,
    request_rows: Sequence[int],
    reserve: Reserve,
) -> Tensor:
    tensor = Tensor(name=expected.name, datatype=expected.datatype, shape=array.shape)
    if expected.datatype != BYTES:
        _write_fixed(tensor, array, expected.datatype, reserve)
        return tensor
    parts = _split(array, request_rows) if contract.batches else [array]
    encoded = [datatypes.encode(part) for part in parts]
    tensor.request_bytes.extend(len(part) for part in encoded)
    _write(tensor, b"".join(encoded), reserve)
    return tensor


def _split(array: Array, request_rows: Sequence[int]) -> Iterable[Array]:
    start = 0
    for rows in request_rows:
        yield array[start : start + rows]
        start += rows


def _write_fixed(tensor: Tensor, array: Array, datatype: str, reserve: Reserve) -> None:
    """Straight into shared memory if there is room: this is the only copy made."""
    room = reserve(array.nbytes)
    if room is None:
        tensor.inline = datatypes.encode(array)
        return
    view, reference = room
    target = np.frombuffer(view, NUMPY_TYPES[datatype]).reshape(array.shape)
    np.copyto(target, array)
    tensor.reference.CopyFrom(reference)


def _write(tensor: Tensor, data: bytes, reserve: Reserve) -> None:
    room = reserve(len(data))
    if room is None:
        tensor.inline = data
        return
    view, reference = room
    view[:] = data
    tensor.reference.CopyFrom(reference)
