"""Steps of a pipeline that leave their tensors on the device: memory, conversions, runs.

Nothing in here waits but `TorchMemory.get`. Each thread that runs pipelines has a stream of its
own, and one for copies from the host, which so run beside the step before them.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import cast

import numpy as np
import torch

from sits_core.datatypes import Array
from sits_executor.backends.base import Shape, Stored
from sits_executor.backends.pytorch.device import Stream, TorchDevice
from sits_executor.backends.pytorch.faults import translated
from sits_executor.backends.pytorch.slots import Captured, Slot
from sits_executor.backends.pytorch.tensors import (
    DATATYPES,
    TORCH_TYPES,
    as_array,
    copied,
    torch_type,
)


class TorchMemory:
    """Two are equal when their tensors are on the same device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._own = threading.local()

    @contextmanager
    def working(self) -> Iterator[None]:
        with torch.inference_mode():
            if self.device.type != "cuda":
                yield
                return
            with torch.cuda.stream(self._stream("work")):
                yield

    def put(self, array: Array) -> Stored:
        if self.device.type != "cuda":
            return copied(array)
        host = torch.empty(array.shape, dtype=torch_type(array), pin_memory=True)
        np.copyto(as_array(host), array)
        copies = self._stream("copies")
        with torch.cuda.stream(copies):
            tensor = host.to(self.device, non_blocking=True)
        work = torch.cuda.current_stream(self.device)
        work.wait_stream(copies)
        tensor.record_stream(work)
        return tensor

    def get(self, stored: Stored) -> Array:
        try:
            return as_array(cast("torch.Tensor", stored).cpu())
        except RuntimeError as error:
            raise translated(error) from error

    def cast(self, stored: Stored, datatype: str) -> Stored:
        return cast("torch.Tensor", stored).to(TORCH_TYPES[datatype])

    def reshape(self, stored: Stored, shape: Shape) -> Stored:
        return cast("torch.Tensor", stored).reshape(shape)

    def describe(self, stored: Stored) -> tuple[str, Shape]:
        tensor = cast("torch.Tensor", stored)
        return DATATYPES[tensor.dtype], tuple(tensor.shape)

    def _stream(self, name: str) -> torch.cuda.Stream:
        stream: torch.cuda.Stream | None = getattr(self._own, name, None)
        if stream is None:
            stream = torch.cuda.Stream(self.device)
            setattr(self._own, name, stream)
        return stream

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TorchMemory) and other.device == self.device

    def __hash__(self) -> int:
        return hash(self.device)

    def __repr__(self) -> str:
        return str(self.device)


def tensors_of(inputs: Mapping[str, Stored]) -> dict[str, torch.Tensor]:
    return {name: cast("torch.Tensor", stored) for name, stored in inputs.items()}


def replayed(
    device: TorchDevice, slot: Slot, captured: Captured,
    inputs: tuple[torch.Tensor, ...], rows: int | None,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """A graph between two steps: it runs on its slot's stream, after what the caller's stream
    was given before and before what it is given next. What the graph writes to is its own, so
    the results are copied out."""
    results = tuple(torch.empty_like(static) for static in captured.outputs)
    caller = _current(device)
    _after(slot.stream, caller)
    with device.on(slot.stream):
        for static, tensor in zip(captured.inputs, inputs, strict=True):
            if rows is None:
                static.copy_(tensor, non_blocking=True)
                continue
            static[:rows].copy_(tensor, non_blocking=True)
            if rows < static.shape[0]:
                static[rows:].zero_()
        captured.graph.replay()
        for result, static in zip(results, captured.outputs, strict=True):
            result.copy_(static, non_blocking=True)
    _after(caller, slot.stream)
    return results if rows is None else tuple(result[:rows] for result in results)


def _current(device: TorchDevice) -> Stream:
    on_gpu = device.torch.type == "cuda"
    return torch.cuda.current_stream(device.torch) if on_gpu else None


def _after(stream: Stream, other: Stream) -> None:
    """What `stream` is given from now on runs after what `other` was given so far."""
    if isinstance(stream, torch.cuda.Stream) and isinstance(other, torch.cuda.Stream):
        stream.wait_stream(other)
