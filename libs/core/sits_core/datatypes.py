"""Open Inference Protocol datatypes, their NumPy types and the BYTES encoding."""

import math
import struct
from collections.abc import Sequence
from typing import Final

import ml_dtypes
import numpy as np
import numpy.typing as npt

from sits_core.errors import InvalidArgument

Array = npt.NDArray[np.generic]

NUMPY_TYPES: Final[dict[str, np.dtype[np.generic]]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
"""All fixed-size datatypes. BYTES is an object array of `bytes`."""

BYTES: Final = "BYTES"
_NAMES: Final = {dtype: name for name, dtype in NUMPY_TYPES.items()}
_LENGTH = struct.Struct("<I")


def from_numpy(dtype: np.dtype[np.generic]) -> str:
    """The datatype of an array, whatever its byte order. Raises `TypeError` for none."""
    known = _NAMES.get(dtype)
    if known is not None:
        return known
    if dtype.kind in "OSU":
        return BYTES
    for name, candidate in NUMPY_TYPES.items():
        if dtype.newbyteorder("<") == candidate:
            return name
    raise TypeError(f"no Open Inference Protocol datatype for NumPy type {dtype}")


def element_size(datatype: str) -> int | None:
    """Bytes an element takes; None for BYTES. Raises `InvalidArgument` when unknown."""
    if datatype == BYTES:
        return None
    try:
        return NUMPY_TYPES[datatype].itemsize
    except KeyError:
        known = ", ".join([*NUMPY_TYPES, BYTES])
        raise InvalidArgument(f"unknown datatype '{datatype}', expected one of {known}") from None


def encode(array: Array) -> bytes:
    """Row-major little-endian packed bytes of any array: strided, big-endian, 0-d too."""
    if array.dtype.kind in "OSU":
        return encode_bytes(array.reshape(-1).tolist())
    return np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def decode(data: bytes | memoryview, datatype: str, shape: Sequence[int]) -> Array:
    """A read-only view of `data` (a new object array for BYTES). Sizes must already fit;
    `InvalidArgument` where a BYTES payload holds another number of elements."""
    if datatype == BYTES:
        elements = decode_bytes(data)
        if len(elements) != (count := math.prod(shape)):
            raise InvalidArgument(f"expected {count} BYTES elements, got {len(elements)}")
        flat = np.empty(len(elements), dtype=object)
        flat[:] = elements
        return flat.reshape(shape)
    return np.frombuffer(data, dtype=NUMPY_TYPES[datatype]).reshape(shape)


def encode_bytes(elements: Sequence[bytes | str]) -> bytes:
    """Each element behind its length. Raises `TypeError` for anything but bytes and text."""
    parts: list[bytes] = []
    for element in elements:
        raw = element.encode() if isinstance(element, str) else element
        if not isinstance(raw, bytes):  # bytes(5) would be five zeros
            raise TypeError(f"expected bytes or text in a BYTES array, got {type(raw).__name__}")
        parts += (_LENGTH.pack(len(raw)), raw)
    return b"".join(parts)


def decode_bytes(data: bytes | memoryview) -> list[bytes]:
    """Elements of a BYTES payload. Raises `InvalidArgument` when it is cut short."""
    view = memoryview(data)
    elements: list[bytes] = []
    position, end = 0, len(view)
    while position < end:
        if end - position < 4:
            raise InvalidArgument(
                f"incomplete string length indicator: expected 4 bytes, got {end - position}"
            )
        (length,) = _LENGTH.unpack_from(view, position)
        position += 4
        if end - position < length:
            raise InvalidArgument(
                f"incomplete string data: expected {length} bytes, got {end - position}"
            )
        elements.append(bytes(view[position : position + length]))
        position += length
    return elements
