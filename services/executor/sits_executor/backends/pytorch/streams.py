"""PyTorch on a device with streams: staged inputs, captured graphs, flights.

A batch whose shapes have a graph is padded to the graph's rows, copied to the device, replayed
and copied back, all on one stream and without waiting. Any other batch runs eagerly on the
stream; when its shapes have come often enough, they get a graph too (`growth.py`).
Weakness: an eager run takes as long to launch as its Python does, and the thread that launches
does nothing else meanwhile.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

import numpy as np
import torch

from sits_core.datatypes import Array
from sits_executor.backends.base import Arrays, Parameters, Signature, Stored
from sits_executor.backends.budget import Budget
from sits_executor.backends.pytorch.device import Memory, TorchDevice
from sits_executor.backends.pytorch.faults import translated
from sits_executor.backends.pytorch.flights import StagedRun, TorchFlight
from sits_executor.backends.pytorch.graph_options import GraphOptions
from sits_executor.backends.pytorch.graphs import Graphs
from sits_executor.backends.pytorch.host_sets import Form
from sits_executor.backends.pytorch.model import Model
from sits_executor.backends.pytorch.resident import TorchMemory, replayed, tensors_of
from sits_executor.backends.pytorch.slots import Captured, Slot, SlotPool
from sits_executor.backends.pytorch.tensors import as_array, torch_type
from sits_executor.backends.streamed import Staged, StreamStats
from sits_executor.contract import Contract


class StreamedBackend:
    """`streams` runs at a time, each with graphs and buffers of its own."""

    signature: Signature | None = None
    fallback = ""

    def __init__(
        self,
        model: Model,
        device: TorchDevice,
        streams: int,
        options: GraphOptions,
        staging: Budget,
    ) -> None:
        self.model, self.device = model, device
        self.stats = StreamStats()
        self.freed: Callable[[], object] = lambda: None
        self.precision = model.precision
        self.home = TorchMemory(device.torch)
        self._slots = SlotPool(Slot.on(device) for _ in range(streams))
        self._graphs = Graphs(model, device, self._slots, options, staging, self.stats)
        self._graphs.freed = lambda: self.freed()
        self._side = device.stream()
        self._batches = True

    @property
    def streams(self) -> int:
        return len(self._slots.slots)

    @property
    def free(self) -> int:
        return self._slots.free

    def memory(self) -> Memory:
        return self.device.memory()

    def prepare(self, contract: Contract) -> None:
        self._batches = contract.batches
        self._graphs.prepare(contract)

    def run(self, inputs: Arrays, parameters: Parameters) -> Arrays:
        """Waits; on one of the model's streams when one is free, on one beside them else."""
        staged = self.stage(inputs)
        flight = self.launch(staged, parameters) if staged is not None else None
        if flight is None:
            if staged is not None:
                staged.discard()
            return self._run_now(inputs)
        try:
            flight.wait()
            return {name: np.array(array) for name, array in flight.land().items()}
        finally:
            flight.release()
            self.freed()

    def run_resident(
        self, inputs: Mapping[str, Stored], parameters: Parameters
    ) -> Mapping[str, Stored]:
        """By a graph if there is one for these shapes and a free stream, eagerly on the caller's
        stream else."""
        tensors = tensors_of(inputs)
        slot = self._slots.try_take()
        try:
            found = self._captured(slot, tensors) if slot is not None else None
            if slot is None or found is None:
                self.stats.eager_runs += 1
                return self.model(tensors)
            captured, rows = found
            ordered = tuple(tensors[name] for name in self.model.inputs)
            results = replayed(self.device, slot, captured, ordered, rows)
            slot.event.record(slot.stream)
            self.stats.replays += 1
            return dict(zip(self.model.outputs, results, strict=True))
        except Exception as error:
            raise translated(error) from error
        finally:
            if slot is not None:
                self._slots.give(slot)
                self.freed()

    def _captured(
        self, slot: Slot, tensors: Mapping[str, torch.Tensor]
    ) -> tuple[Captured, int | None] | None:
        """The slot's graph for these tensors, and their rows."""
        ordered = [tensors[name] for name in self.model.inputs]
        rows = ordered[0].shape[0] if self._batches else None
        shapes = tuple([tuple(tensor.shape[int(self._batches) :]) for tensor in ordered])
        found = self._graphs.layout(shapes, rows)
        captured = slot.find((shapes, found[1])) if found is not None else None
        return (captured, rows) if captured is not None else None

    def stage(self, inputs: Arrays) -> StagedRun | None:
        arrays = tuple(inputs[name] for name in self.model.inputs)
        skip = int(self._batches)
        rows = arrays[0].shape[0] if self._batches else None
        shapes = tuple([array.shape[skip:] for array in arrays])
        found = self._graphs.layout(shapes, rows)
        if found is None:
            return StagedRun(shapes, rows, rows, None, None, tuple(map(self._pinned, arrays)))
        layout, bucket = found
        held = layout.take()
        if held is None:
            return None
        for target, array in zip(held.input_arrays, arrays, strict=True):
            if rows is None or bucket is None:
                np.copyto(target, array)
                continue
            np.copyto(target[:rows], array)
            if rows < bucket:
                target[rows:bucket] = 0
        return StagedRun(shapes, rows, bucket, layout, held, ())

    def launch(self, staged: Staged, parameters: Parameters) -> TorchFlight | None:
        if not isinstance(staged, StagedRun):
            raise TypeError(f"{staged!r} was not staged here")
        slot = self._slots.try_take()
        if slot is None:
            return None
        try:
            captured = slot.find((staged.shapes, staged.bucket)) if staged.held else None
            if captured is None:
                outputs = self._launch_eager(slot, staged)
                self.stats.eager_runs += 1
            else:
                outputs = self._replay(slot, captured, staged)
                self.stats.replays += 1
                self.stats.padded_rows += (staged.bucket or 0) - (staged.rows or 0)
            slot.event.record(slot.stream)
        except Exception as error:
            self._slots.give(slot)
            raise translated(error) from error
        return TorchFlight(self.device, self._slots, slot, staged, outputs)

    def state_kept(self) -> AbstractContextManager[None]:
        return self.model.state_kept()

    def close(self) -> None:
        self._graphs.close()

    def _replay(self, slot: Slot, captured: Captured, staged: StagedRun) -> Arrays:
        held = staged.held
        assert held is not None  # noqa: S101 - only staged sets meet graphs
        views = held.views(staged.bucket)
        device, stream = self.device, slot.stream
        device.use(stream)
        for source, host in zip(captured.sources, views.inputs, strict=True):
            device.copy(stream, source, host)
        captured.graph.replay()
        for host, target in zip(views.outputs, captured.targets, strict=True):
            device.copy(stream, host, target)
        arrays = held.output_arrays
        if staged.rows is not None:
            arrays = tuple([array[: staged.rows] for array in arrays])
        return dict(zip(self.model.outputs, arrays, strict=True))

    def _launch_eager(self, slot: Slot, staged: StagedRun) -> Arrays:
        self._graphs.missed(staged.shapes, staged.rows)
        with self.device.on(slot.stream), torch.inference_mode():
            device = self.device.torch
            inputs = [host.to(device, non_blocking=True) for host in staged.tensors()]
            results = self.model(dict(zip(self.model.inputs, inputs, strict=True)))
            hosts = {
                name: self.device.host(tuple(result.shape), result.dtype)
                for name, result in results.items()
            }
            for name, result in results.items():
                hosts[name].copy_(result, non_blocking=True)
            staged.keep = (inputs, results, hosts)
        return {name: as_array(host) for name, host in hosts.items()}

    def _run_now(self, inputs: Arrays) -> Arrays:
        self.stats.eager_runs += 1
        try:
            with self.device.on(self._side), torch.inference_mode():
                tensors = {n: self._pinned(a).to(self.device.torch) for n, a in inputs.items()}
                results = self.model(tensors)
                return {name: as_array(tensor.cpu()) for name, tensor in results.items()}
        except RuntimeError as error:
            raise translated(error) from error

    def _pinned(self, array: Array) -> torch.Tensor:
        form = Form(array.shape, torch_type(array))
        host = self.device.host(form.shape, form.dtype)
        np.copyto(as_array(host), array)
        return host
