"""Turns what the user writes after `--input` into arrays that fit a model's metadata."""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tritonclient.utils import triton_to_np_dtype

Array = NDArray[np.generic]
BYTES = "BYTES"


class WrongInput(ValueError):
    """The text says what was expected and what came."""


def assignments(texts: Iterable[str]) -> dict[str, str]:
    """`name=value` pairs, each name once."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise WrongInput(f"expected NAME=JSON or NAME=@FILE, got {text!r}")
        if name in found:
            raise WrongInput(f"input {name!r} is given twice")
        found[name] = value
    return found


def read(name: str, value: str, datatype: str, shape: Sequence[int]) -> Array:
    """The array for input `name`. `value` is JSON, or @file with .npy, .json or raw content."""
    if not value.startswith("@"):
        array = from_json(name, value, datatype)
    else:
        array = from_file(name, Path(value[1:]), datatype, shape)
    return with_batch(array, shape)


def from_json(name: str, text: str, datatype: str) -> Array:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise WrongInput(f"input {name!r}: not JSON ({error}), a file is @FILE") from None
    try:
        return _strings(value) if datatype == BYTES else _numbers(value, datatype)
    except (ValueError, TypeError, OverflowError) as error:
        raise WrongInput(f"input {name!r}: expected {datatype} values: {error}") from None


def from_file(name: str, path: Path, datatype: str, shape: Sequence[int]) -> Array:
    try:
        if path.suffix == ".npy":
            return _typed(np.load(path, allow_pickle=False), datatype)
        if path.suffix == ".json":
            return from_json(name, path.read_text(), datatype)
        return from_raw(name, path.read_bytes(), datatype, shape)
    except OSError as error:
        raise WrongInput(f"input {name!r}: cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise WrongInput(f"input {name!r}: {path}: {error}") from None


def from_raw(name: str, data: bytes, datatype: str, shape: Sequence[int]) -> Array:
    """Packed little-endian values; for BYTES the content is one element."""
    if datatype == BYTES:
        return np.array([data], dtype=np.object_).reshape([1] * max(1, len(shape)))
    if datatype == "BF16":
        raise WrongInput(f"input {name!r}: give BF16 values as JSON or .npy")
    dtype = np.dtype(triton_to_np_dtype(datatype)).newbyteorder("<")
    fixed = math.prod(dim for dim in shape if dim >= 0)
    if not data or len(data) % (fixed * dtype.itemsize or 1):
        raise WrongInput(
            f"input {name!r}: expected a multiple of {fixed * dtype.itemsize} bytes "
            f"for {datatype}{list(shape)}, got {len(data)}"
        )
    return np.frombuffer(data, dtype).reshape(_filled(shape, len(data) // dtype.itemsize))


def random(datatype: str, shape: Sequence[int]) -> Array:
    """Something to try a model with: numbers from 0 to 1, unknown dimensions are 1."""
    filled = [max(1, dim) for dim in shape]
    if datatype == BYTES:
        return np.full(filled, b"sits", dtype=np.object_)
    dtype, rng = np.dtype(triton_to_np_dtype(datatype)), np.random.default_rng()
    if np.issubdtype(dtype, np.floating):
        return rng.random(filled).astype(dtype)
    return rng.integers(0, 2, filled).astype(dtype)


def with_batch(array: Array, shape: Sequence[int]) -> Array:
    """A leading 1 when only the batch dimension was left out."""
    one_short = array.ndim == len(shape) - 1 and shape[0] == -1
    return array[np.newaxis] if one_short else array


def _filled(shape: Sequence[int], count: int) -> list[int]:
    """`shape` with its first unknown dimension taking all that is there, others 1."""
    fixed = math.prod(dim for dim in shape if dim >= 0)
    rest, filled = count // fixed if fixed else 0, []
    for dim in shape:
        filled.append(dim if dim >= 0 else rest)
        rest = rest if dim >= 0 else 1
    return filled


def _strings(value: object) -> Array:
    texts = np.array(value)
    if texts.dtype.kind != "U":
        raise ValueError("every element must be a string")
    return np.vectorize(str.encode, otypes=[np.object_])(texts)  # type: ignore[no-any-return]


def _numbers(value: object, datatype: str) -> Array:
    array = np.array(value)
    if array.dtype.kind not in "bif" and array.dtype.kind != "u":
        raise ValueError(f"got {array.dtype}")
    return _typed(array, datatype)


def _typed(array: Array, datatype: str) -> Array:
    """Refuses what the type cannot hold, such as 1.5 or 300 as INT8."""
    wanted = array.astype(triton_to_np_dtype(datatype), casting="unsafe")
    integral = np.issubdtype(wanted.dtype, np.integer) or wanted.dtype == np.bool_
    if integral and not np.array_equal(wanted.astype(array.dtype), array):
        raise ValueError("a value does not fit")
    return wanted
