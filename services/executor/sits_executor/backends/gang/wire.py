"""Arrays between the executor and the members of a gang, over pipes: a header of JSON, then the
bytes of each array. Nothing is pickled."""

import json
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any, Final

import numpy as np

from sits_core.datatypes import NUMPY_TYPES, Array, from_numpy

STOP: Final = b""
Header = dict[str, Any]


def header_of(arrays: Mapping[str, Array]) -> Header:
    """Names, datatypes and shapes, in order."""
    return {
        "arrays": [
            {"name": name, "datatype": from_numpy(array.dtype), "shape": list(array.shape)}
            for name, array in arrays.items()
        ]
    }


def send(pipe: "Connection[bytes, bytes]", header: Header) -> None:
    pipe.send_bytes(json.dumps(header).encode())


def send_arrays(pipe: "Connection[bytes, bytes]", arrays: Mapping[str, Array]) -> None:
    """After their header."""
    for array in arrays.values():
        pipe.send_bytes(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def receive(pipe: "Connection[bytes, bytes]") -> Header | None:
    """None = stop. Raises `EOFError` when the other end is gone."""
    data = pipe.recv_bytes()
    if data == STOP:
        return None
    header: Header = json.loads(data)
    return header


def receive_arrays(pipe: "Connection[bytes, bytes]", header: Header) -> dict[str, Array]:
    return {entry["name"]: _array(pipe.recv_bytes(), entry) for entry in header["arrays"]}


def _array(data: bytes, entry: Header) -> Array:
    array: Array = np.frombuffer(data, NUMPY_TYPES[entry["datatype"]]).reshape(entry["shape"])
    return array
