"""Tensor data in the two forms of the protocol: typed fields to packed bytes, and BYTES counted."""

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np

from sits_core.datatypes import BYTES, NUMPY_TYPES, encode_bytes
from sits_core.errors import InvalidArgument
from sits_protos.oip.grpc_service_pb2 import InferTensorContents

_FIELDS: Final = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}
_WIDER: Final = {"int_contents": np.dtype("<i4"), "uint_contents": np.dtype("<u4")}
_LENGTH = struct.Struct("<I")


def pack(name: str, model: str, datatype: str, contents: InferTensorContents) -> bytes:
    """Packed little-endian bytes of typed contents. The field must be the datatype's own."""
    field = _FIELDS.get(datatype)
    filled = [descriptor.name for descriptor, _value in contents.ListFields()]
    for other in filled:
        if other != field:
            raise InvalidArgument(
                f"unexpected explicit tensor data for input tensor '{name}' for model '{model}' "
                f"of type '{other}', expected datatype '{datatype}'"
                + (f" in {field}" if field else ", which travels in raw_input_contents only")
            )
    if not filled:
        return b""
    if datatype == BYTES:
        return encode_bytes(contents.bytes_contents)
    return _pack_numbers(name, model, datatype, str(field), contents)


def _pack_numbers(
    name: str, model: str, datatype: str, field: str, contents: InferTensorContents
) -> bytes:
    values: Sequence[float] = getattr(contents, field)
    dtype = NUMPY_TYPES[datatype]
    array = np.fromiter(values, _WIDER.get(field, dtype), len(values))
    if array.dtype != dtype:
        limits = np.iinfo(dtype.name)
        if array.min() < limits.min or array.max() > limits.max:
            raise InvalidArgument(
                f"value out of range for input '{name}' for model '{model}': expected "
                f"{datatype} from {limits.min} to {limits.max}, got {array.min()} to {array.max()}"
            )
    return array.astype(dtype, copy=False).tobytes()


def check_bytes(name: str, model: str, data: bytes | memoryview, expected: int) -> None:
    """Walk the lengths of a BYTES payload; there must be exactly `expected` whole elements.

    The elements themselves are never looked at.
    """
    end, position, count = len(data), 0, 0
    unpack: Callable[..., tuple[int, ...]] = _LENGTH.unpack_from
    while position < end:
        if end - position < 4:
            raise InvalidArgument(
                f"incomplete string length indicator for inference input '{name}' for model "
                f"'{model}', expecting 4 bytes but only {end - position} bytes available"
            )
        position += 4 + unpack(data, position)[0]
        count += 1
        if count > expected or position > end:
            break
    if position > end:
        raise InvalidArgument(
            f"incomplete string data for inference input '{name}' for model '{model}': element "
            f"{count} ends at byte {position} but only {end} bytes available"
        )
    if count != expected:
        raise InvalidArgument(
            f"expected {expected} string elements for inference input '{name}' for model "
            f"'{model}', got {'more' if count > expected else count}"
        )


def names_text(names: Iterable[str]) -> str:
    """`['a','b']`, the first few."""
    listed = sorted(names)
    shown = ",".join(f"'{name[:80]}'" for name in listed[:8])
    return f"[{shown}{',…' if len(listed) > 8 else ''}]"
