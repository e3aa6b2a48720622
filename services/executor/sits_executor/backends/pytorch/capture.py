"""Captures one graph: warm-up, record, one replay that is compared with an eager run."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

from sits_executor.backends.pytorch.device import TorchDevice
from sits_executor.backends.pytorch.faults import translated
from sits_executor.backends.pytorch.host_sets import Form, cut, places
from sits_executor.backends.pytorch.model import Model
from sits_executor.backends.pytorch.slots import Captured, GraphKey, Slot
from sits_executor.backends.streamed import DeviceLost, OutOfMemory

TOLERANCE: Final = {"FP32": 1e-4, "FP16": 5e-3, "BF16": 4e-2}
"""Largest difference over the largest magnitude: a few units in the last place of the precision,
after a few hundred additions in another order."""
_SEED: Final = 0


class NotCaptured(Exception):
    """`reason` is a metric label."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Recorder:
    """Works on a slot that nobody else uses meanwhile."""

    def __init__(self, model: Model, device: TorchDevice) -> None:
        self._model, self._device = model, device
        self._tolerance = TOLERANCE[model.precision]

    def forms(self, slot: Slot, inputs: tuple[Form, ...], rows: int | None) -> tuple[Form, ...]:
        """Of the outputs, found by running it. Raises `NotCaptured` when rows do not lead."""
        with self._kept():
            outputs = self._eager(slot, self._sample(inputs, rows))
        if rows is not None and any(not t.ndim or t.shape[0] != rows for t in outputs):
            raise NotCaptured("rows", "an output's first dimension is not the rows")
        return tuple(Form(tuple(t.shape[rows is not None :]), t.dtype) for t in outputs)

    def record(self, slot: Slot, key: GraphKey, inputs: tuple[Form, ...]) -> Captured:
        """Needs `slot.statics` of the key's shapes. Raises `NotCaptured`, or `DeviceLost`."""
        shapes, rows = key
        static_in, static_out = (cut(tensors, rows) for tensors in slot.statics[shapes])
        sample = self._sample(inputs, rows)
        try:
            with self._kept():
                expected = self._eager(slot, sample)
            with self._kept():
                self._eager(slot, sample)
                graph = self._device.capture(
                    slot.stream, slot.pool, lambda: self._into(static_in, static_out)
                )
            captured = Captured(graph, static_in, static_out, places(static_in), places(static_out))
            with self._kept():
                self._compare(slot, captured, sample, expected)
        except Exception as error:
            raise _cause(translated(error)) from error
        return captured

    def _into(self, inputs: tuple[torch.Tensor, ...], outputs: tuple[torch.Tensor, ...]) -> None:
        """One run on the static tensors. Results move to tensors of their own, so that the next
        graph of the pool may use all of this one's memory."""
        with torch.inference_mode():
            results = self._run(inputs)
            for target, result in zip(outputs, results, strict=True):
                target.copy_(result)

    def _run(self, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        named = dict(zip(self._model.inputs, inputs, strict=True))
        return tuple(self._model(named).values())

    def _eager(self, slot: Slot, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        with self._device.on(slot.stream), torch.inference_mode():
            results = self._run(inputs)
        self._device.wait(slot.stream)
        return results

    def _compare(
        self,
        slot: Slot,
        captured: Captured,
        sample: tuple[torch.Tensor, ...],
        expected: tuple[torch.Tensor, ...],
    ) -> None:
        with self._device.on(slot.stream):
            for static, given in zip(captured.inputs, sample, strict=True):
                static.copy_(given)
            captured.graph.replay()
        self._device.wait(slot.stream)
        for got, wanted in zip(captured.outputs, expected, strict=True):
            if (off := difference(got, wanted)) > self._tolerance:
                raise NotCaptured("differs", f"replay and eager run differ by {off:.2g}")

    def _sample(self, forms: tuple[Form, ...], rows: int | None) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(_SEED)
        lead = () if rows is None else (rows,)
        return tuple(
            _random(lead + f.shape, f.dtype, generator).to(self._device.torch) for f in forms
        )

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """The model's state, on the device's own time."""
        with self._model.state_kept():
            self._device.settle()
            yield
        self._device.settle()


def difference(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Largest difference over the largest magnitude; infinite where one alone is no number."""
    a, b = got.double(), wanted.double()
    if not bool(torch.equal(torch.isfinite(a), torch.isfinite(b))):
        return float("inf")
    finite = torch.isfinite(b)
    if not bool(finite.any()):
        return 0.0
    a, b = a[finite], b[finite]
    scale = max(float(b.abs().max()), 1e-6)
    return float((a - b).abs().max()) / scale


def _random(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Small numbers that are legal for most models: 0 and 1 as ids."""
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, 2, shape, generator=generator).to(dtype)


def _cause(error: Exception) -> Exception:
    if isinstance(error, DeviceLost | NotCaptured):
        return error
    if isinstance(error, OutOfMemory):
        return NotCaptured("no_memory", error.message)
    return NotCaptured("capture_failed", str(error).partition("\n")[0][:200])
