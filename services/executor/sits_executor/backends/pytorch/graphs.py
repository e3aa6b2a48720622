"""All graphs of one model: captured at load and when shapes come often, bounded, exchanged."""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Final

import structlog
import torch

from sits_executor.backends.budget import Budget
from sits_executor.backends.pytorch.capture import NotCaptured, Recorder
from sits_executor.backends.pytorch.device import TorchDevice
from sits_executor.backends.pytorch.faults import translated
from sits_executor.backends.pytorch.graph_options import GraphOptions, bucket_of
from sits_executor.backends.pytorch.growth import Growth
from sits_executor.backends.pytorch.host_sets import Form, Layout, ShapeKey
from sits_executor.backends.pytorch.model import Model
from sits_executor.backends.pytorch.slots import Slot, SlotPool
from sits_executor.backends.pytorch.tensors import TORCH_TYPES
from sits_executor.backends.streamed import DeviceLost, StreamStats
from sits_executor.contract import Contract, Shape

log = structlog.get_logger()

_MOST_COUNTED: Final = 1024


class Graphs:
    """`layout` and `missed` are called by the thread that runs, captures by another one."""

    def __init__(
        self,
        model: Model,
        device: TorchDevice,
        slots: SlotPool,
        options: GraphOptions,
        staging: Budget,
        stats: StreamStats,
    ) -> None:
        self._model, self._device, self._slots = model, device, slots
        self._options, self._staging, self._stats = options, staging, stats
        self._recorder = Recorder(model, device)
        self._buckets: tuple[int, ...] = ()
        self._batches = False
        self._contract: Contract | None = None
        self._layouts: dict[ShapeKey, Layout] = {}
        self._missed: Counter[tuple[ShapeKey, int | None]] = Counter()
        self._refused: set[tuple[ShapeKey, int | None]] = set()
        self._lock = threading.Lock()
        self.freed: Callable[[], object] = lambda: None
        self._growth = Growth(f"{device.torch} graphs", self._grow)

    def prepare(self, contract: Contract) -> None:
        """Capture every bucket where shapes are fixed; graphs that fail are counted."""
        if not self._device.captures:
            return
        self._contract, self._batches = contract, contract.batches
        self._buckets = self._options.up_to(contract.max_rows)
        inner = [_inner(contract, name) for name in self._model.inputs]
        if all(-1 not in shape for shape in inner):
            shapes = tuple(inner)
            for bucket in reversed(self._buckets):
                self._capture(shapes, bucket if self._batches else None)

    def layout(self, shapes: ShapeKey, rows: int | None) -> tuple[Layout, int | None] | None:
        """Where such a batch is staged, and the rows it is padded to; None = nowhere."""
        layout = self._layouts.get(shapes)
        if layout is None:
            return None
        if rows is None:
            return layout, None
        bucket = bucket_of(rows, self._buckets)
        return None if bucket is None else (layout, bucket)

    def missed(self, shapes: ShapeKey, rows: int | None) -> None:
        """Such a batch ran eagerly. Often enough, and it gets a graph."""
        bucket = None if rows is None else bucket_of(rows, self._buckets)
        if not self._buckets or (rows is not None and bucket is None):
            return
        key = (shapes, bucket)
        if key in self._refused:
            return
        if len(self._missed) >= _MOST_COUNTED:
            self._missed.clear()
        self._missed[key] += 1
        if self._missed[key] == self._options.after:
            self._growth.want(key)

    def close(self) -> None:
        """Lets go of all graphs and their memory, and of whoever would be told."""
        self._growth.close()
        for layout in self._layouts.values():
            layout.close()
        for slot in self._slots.slots:
            slot.graphs.clear()
            slot.statics.clear()
        self.freed = lambda: None

    def _grow(self, key: tuple[ShapeKey, int | None]) -> None:
        self._capture(*key)
        self._missed.pop(key, None)

    def _capture(self, shapes: ShapeKey, rows: int | None) -> None:
        """On every slot; the first failure ends it, since the others would fail as well."""
        for slot in self._slots.slots:
            self._slots.take(slot)
            try:
                self._on_slot(slot, shapes, rows)
            except NotCaptured as error:
                self._fell_back(shapes, rows, error)
                return
            except DeviceLost as error:
                log.error("graph.device_lost", cause=error.message)
                return
            finally:
                self._slots.give(slot)
                self.freed()

    def _on_slot(self, slot: Slot, shapes: ShapeKey, rows: int | None) -> None:
        gone = slot.evict(self._options.limit)
        self._stats.graphs -= len(gone)
        layout = self._layout_of(slot, shapes)
        if shapes not in slot.statics:
            slot.statics[shapes] = self._statics(layout)
        captured = self._recorder.record(slot, (shapes, rows), layout.inputs)
        slot.graphs[shapes, rows] = captured
        self._stats.graphs += 1
        self._publish(shapes, layout)

    def _layout_of(self, slot: Slot, shapes: ShapeKey) -> Layout:
        if (known := self._layouts.get(shapes)) is not None:
            return known
        inputs = tuple(
            Form(shape, dtype) for shape, dtype in zip(shapes, self._types(), strict=True)
        )
        most = self._buckets[-1] if self._batches else None
        try:
            outputs = self._recorder.forms(slot, inputs, most)
        except Exception as error:
            raise _not_captured(translated(error)) from error
        return Layout(self._device, self._staging, most, inputs, outputs)

    def _types(self) -> list[torch.dtype]:
        assert self._contract is not None  # noqa: S101 - prepare came first
        return [TORCH_TYPES[self._contract.inputs[n].datatype] for n in self._model.inputs]

    def _statics(self, layout: Layout) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
        lead = () if layout.rows is None else (layout.rows,)
        try:
            return (
                tuple(self._empty(lead, form) for form in layout.inputs),
                tuple(self._empty(lead, form) for form in layout.outputs),
            )
        except RuntimeError as error:
            raise _not_captured(translated(error)) from error

    def _empty(self, lead: Shape, form: Form) -> torch.Tensor:
        return torch.zeros(lead + form.shape, dtype=form.dtype, device=self._device.torch)

    def _publish(self, shapes: ShapeKey, layout: Layout) -> None:
        """From now on such batches are staged for graphs. Layouts without graphs go."""
        with self._lock:
            self._layouts = {**self._layouts, shapes: layout}
            used = {key[0] for slot in self._slots.slots for key in slot.graphs}
            for gone in self._layouts.keys() - used:
                self._layouts[gone].close()
            self._layouts = {k: v for k, v in self._layouts.items() if k in used}
            self._stats.staging_bytes = sum(v.bytes_held for v in self._layouts.values())

    def _fell_back(self, shapes: ShapeKey, rows: int | None, error: NotCaptured) -> None:
        self._refused.add((shapes, rows))
        self._stats.fallbacks[error.reason] = self._stats.fallbacks.get(error.reason, 0) + 1
        log.warning("graph.fallback", rows=rows, reason=error.reason, cause=str(error)[:200])


def _inner(contract: Contract, name: str) -> Shape:
    tensor = contract.inputs[name]
    return tensor.dims if tensor.inner is None else tensor.inner


def _not_captured(error: Exception) -> Exception:
    if isinstance(error, DeviceLost | NotCaptured):
        return error
    return NotCaptured("capture_failed", str(error).partition("\n")[0][:200])
