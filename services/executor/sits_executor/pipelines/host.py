"""The host's memory: NumPy arrays, converted by NumPy."""

from contextlib import AbstractContextManager, nullcontext
from typing import cast

import numpy as np

from sits_core import datatypes
from sits_core.datatypes import NUMPY_TYPES, Array
from sits_executor.backends.base import Shape, Stored


class HostMemory:
    """Everything is done when the call returns."""

    def working(self) -> AbstractContextManager[object]:
        return nullcontext()

    def put(self, array: Array) -> Stored:
        return array

    def get(self, stored: Stored) -> Array:
        return np.asarray(cast("Array", stored))

    def cast(self, stored: Stored, datatype: str) -> Stored:
        return cast("Array", stored).astype(NUMPY_TYPES[datatype])

    def reshape(self, stored: Stored, shape: Shape) -> Stored:
        return cast("Array", stored).reshape(shape)

    def describe(self, stored: Stored) -> tuple[str, Shape]:
        array = cast("Array", stored)
        return datatypes.from_numpy(array.dtype), array.shape

    def __repr__(self) -> str:
        return "host"


HOST = HostMemory()
"""The one there is."""
