"""Models without files, for tests and benchmarks: small pure functions chosen by name.

config.pbtxt: `backend: "builtin"`, and parameters `function` (see `FUNCTIONS`) and whatever
that function reads. Inputs and outputs are declared there; outputs pair with inputs by
position, and a single input feeds them all.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from sits_core.datatypes import Array
from sits_executor.backends.base import (
    Arrays,
    Backend,
    LoadError,
    LoadSpec,
    Parameters,
    Signature,
)
from sits_executor.backends.streamed import DeviceLost

Function = Callable[[LoadSpec, Arrays, Parameters], Arrays]


class BuiltinBackend:
    def __init__(self, spec: LoadSpec, function: Function) -> None:
        self._spec, self._function = spec, function

    @property
    def signature(self) -> Signature | None:
        return None

    @property
    def fallback(self) -> str:
        return ""

    @property
    def never_waits(self) -> bool:
        return self._function is not sleep

    def run(self, inputs: Arrays, parameters: Parameters) -> Arrays:
        return self._function(self._spec, inputs, parameters)

    def close(self) -> None:
        return None


def load(spec: LoadSpec) -> Backend:
    name = spec.parameter("function", "identity")
    if name not in FUNCTIONS:
        raise LoadError(f"unknown function '{name}', expected one of {', '.join(FUNCTIONS)}")
    if spec.gpu is not None:
        raise LoadError("the builtin backend runs on the CPU only: use KIND_CPU")
    if (chosen := spec.parameter("layout", "fortran")) not in _LAYOUTS:
        raise LoadError(f"unknown layout '{chosen}', expected one of {', '.join(_LAYOUTS)}")
    for key in ("sleep_ms", "sleep_ms_per_row", "message_bytes"):
        _number(spec, key)
    return BuiltinBackend(spec, FUNCTIONS[name])


def identity(spec: LoadSpec, inputs: Arrays, parameters: Parameters) -> Arrays:
    """Outputs are the inputs."""
    sources = [inputs[entry.name] for entry in spec.config.input if entry.name in inputs]
    last = len(sources) - 1
    return {
        output.name: sources[min(index, last)] for index, output in enumerate(spec.config.output)
    }


def sleep(spec: LoadSpec, inputs: Arrays, parameters: Parameters) -> Arrays:
    """Identity after `sleep_ms` a run and `sleep_ms_per_row` a row; burns no CPU."""
    rows = max((len(array) for array in inputs.values() if array.ndim), default=1)
    time.sleep((_number(spec, "sleep_ms") + rows * _number(spec, "sleep_ms_per_row")) / 1000)
    return identity(spec, inputs, parameters)


def row_sum(spec: LoadSpec, inputs: Arrays, parameters: Parameters) -> Arrays:
    """[rows, 1]: the sum of each row, in the type of the input."""
    return {
        name: np.sum(array.reshape(len(array), -1), axis=1, keepdims=True, dtype=array.dtype)
        for name, array in identity(spec, inputs, parameters).items()
    }


def fail_on(spec: LoadSpec, inputs: Arrays, parameters: Parameters) -> Arrays:
    """Identity, but raises when an element equals `value`; `message` fills `message_bytes`."""
    value = spec.parameter("value", "666")
    if any(_contains(array, value) for array in inputs.values()):
        message = spec.parameter("message", f"found the forbidden value {value}")
        length = int(_number(spec, "message_bytes")) or len(message)
        raise ValueError((message * (length // max(len(message), 1) + 1))[:length])
    return identity(spec, inputs, parameters)


def lose_device(spec: LoadSpec, inputs: Arrays, parameters: Parameters) -> Arrays:
    """Identity, but an element that equals `value` is what a sticky error of a GPU is."""
    value = spec.parameter("value", "666")
    if any(_contains(array, value) for array in inputs.values()):
        raise DeviceLost(f"found the value {value}, at which the device is lost")
    return identity(spec, inputs, parameters)


def echo_parameter(spec: LoadSpec, inputs: Arrays, parameters: Parameters) -> Arrays:
    """[rows, 1] BYTES: the request parameter named by `key`, as text; empty when not given."""
    text = str(parameters.get(spec.parameter("key", "k"), "")).encode()
    rows = max((len(array) for array in inputs.values() if array.ndim), default=1)
    return {output.name: _texts(rows, text) for output in spec.config.output}


def wrong_rows(spec: LoadSpec, inputs: Arrays, parameters: Parameters) -> Arrays:
    """One row too few."""
    return {name: array[:-1] for name, array in identity(spec, inputs, parameters).items()}


def wrong_type(spec: LoadSpec, inputs: Arrays, parameters: Parameters) -> Arrays:
    """FP64, or INT8 when that is what is declared."""
    return {
        name: array.astype(np.int8 if array.dtype == np.float64 else np.float64)
        for name, array in identity(spec, inputs, parameters).items()
    }


def wrong_shape(spec: LoadSpec, inputs: Arrays, parameters: Parameters) -> Arrays:
    """A dimension too many."""
    return {name: array[..., None] for name, array in identity(spec, inputs, parameters).items()}


def no_output(spec: LoadSpec, inputs: Arrays, parameters: Parameters) -> Arrays:
    return {}


def layout(spec: LoadSpec, inputs: Arrays, parameters: Parameters) -> Arrays:
    """Identity with another memory layout, named by `layout` (see `_LAYOUTS`): equal values."""
    change = _LAYOUTS[spec.parameter("layout", "fortran")]
    return {name: change(array) for name, array in identity(spec, inputs, parameters).items()}


def _strided(array: Array) -> Array:
    return np.repeat(array, 2, axis=0)[::2]


def _reversed(array: Array) -> Array:
    return np.ascontiguousarray(array[::-1])[::-1]


_LAYOUTS: Final[Mapping[str, Callable[[Array], Array]]] = {
    "fortran": np.asfortranarray,
    "strided": _strided,
    "reversed": _reversed,
    "big_endian": lambda array: array.astype(array.dtype.newbyteorder(">")),
    "broadcast": lambda array: np.broadcast_to(array[:1], array.shape),
}
"""`broadcast` repeats the first row, the only one whose values differ from the input."""

FUNCTIONS: Final[Mapping[str, Function]] = {
    function.__name__: function
    for function in (
        identity, sleep, row_sum, fail_on, lose_device, echo_parameter,
        wrong_rows, wrong_type, wrong_shape, no_output, layout,
    )
}  # fmt: skip


def _number(spec: LoadSpec, key: str) -> float:
    text = spec.parameter(key, "0")
    try:
        return float(text)
    except ValueError:
        raise LoadError(f"parameter '{key}' is '{text}', expected a number") from None


def _contains(array: Array, value: str) -> bool:
    if array.dtype.kind == "O":
        return value.encode() in array.reshape(-1).tolist()
    return bool(np.any(array.astype(np.float64) == float(value)))


def _texts(rows: int, text: bytes) -> Array:
    array = np.empty((rows, 1), dtype=object)
    array[:] = text
    return array
