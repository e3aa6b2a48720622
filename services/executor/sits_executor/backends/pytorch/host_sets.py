"""Pinned host memory, in sets: one holds the inputs and outputs of one batch.

A set is made for one layout of shapes and is used again and again, so that a batch costs one
copy from the payload pool and no allocation.
"""

import threading
from collections import deque
from typing import Final, NamedTuple

import torch

from sits_core.datatypes import Array
from sits_executor.backends.budget import Budget
from sits_executor.backends.pytorch.device import Place, TorchDevice
from sits_executor.backends.pytorch.tensors import as_array, nbytes

ShapeKey = tuple[tuple[int, ...], ...]
"""The shape of every input without its rows, in the order of the call."""

Tensors = tuple[torch.Tensor, ...]

_MOST_KEPT: Final = 64


class Form(NamedTuple):
    """Shape of a tensor without its rows, and type."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class Views(NamedTuple):
    """A set's tensors, cut to the rows of one bucket."""

    inputs: tuple[Place, ...]
    outputs: tuple[Place, ...]


def cut(tensors: Tensors, rows: int | None) -> Tensors:
    """To so many rows; None = they have none."""
    return tensors if rows is None else tuple([tensor[:rows] for tensor in tensors])


def places(tensors: Tensors) -> tuple[Place, ...]:
    return tuple(map(Place.of, tensors))


class HostSet:
    def __init__(self, inputs: tuple[torch.Tensor, ...], outputs: tuple[torch.Tensor, ...]) -> None:
        self._inputs, self._outputs = inputs, outputs
        self.input_arrays: tuple[Array, ...] = tuple(map(as_array, inputs))
        self.output_arrays: tuple[Array, ...] = tuple(map(as_array, outputs))
        self._views: dict[int | None, Views] = {}

    def views(self, rows: int | None) -> Views:
        """None = whole, of a model that does not batch."""
        if (views := self._views.get(rows)) is None:
            views = self._views[rows] = Views(
                places(cut(self._inputs, rows)), places(cut(self._outputs, rows))
            )
        return views


class Layout:
    """Sets of one layout. `rows` None = the model does not batch. Thread-safe."""

    def __init__(
        self,
        device: TorchDevice,
        budget: Budget,
        rows: int | None,
        inputs: tuple[Form, ...],
        outputs: tuple[Form, ...],
    ) -> None:
        self._device, self._budget = device, budget
        self.rows, self.inputs, self.outputs = rows, inputs, outputs
        lead = () if rows is None else (rows,)
        self._lead = lead
        self.set_bytes = sum(nbytes(lead + f.shape, f.dtype) for f in (*inputs, *outputs))
        self._free: deque[HostSet] = deque(maxlen=_MOST_KEPT)
        self._made = 0
        self._closed = False
        self._lock = threading.Lock()

    def take(self) -> HostSet | None:
        """None when all are in use, and the budget allows no more. The first one always is."""
        with self._lock:
            if self._free:
                return self._free.pop()
            if not self._budget.take(self.set_bytes, at_any_rate=self._made == 0):
                return None
            self._made += 1
        return HostSet(self._tensors(self.inputs), self._tensors(self.outputs))

    def give(self, used: HostSet) -> None:
        with self._lock:
            if self._closed or len(self._free) == _MOST_KEPT:
                self._drop(1)
            else:
                self._free.append(used)

    def close(self) -> None:
        """Sets in use go when they are given back."""
        with self._lock:
            self._closed = True
            self._drop(len(self._free))
            self._free.clear()

    @property
    def bytes_held(self) -> int:
        return self._made * self.set_bytes

    def _drop(self, count: int) -> None:
        self._made -= count
        self._budget.give(count * self.set_bytes)

    def _tensors(self, forms: tuple[Form, ...]) -> tuple[torch.Tensor, ...]:
        return tuple(self._device.host(self._lead + form.shape, form.dtype) for form in forms)
