"""One run on a stream: staged, under way, landed."""

from dataclasses import dataclass

import torch

from sits_executor.backends.base import Arrays
from sits_executor.backends.pytorch.device import TorchDevice
from sits_executor.backends.pytorch.faults import translated
from sits_executor.backends.pytorch.host_sets import HostSet, Layout, ShapeKey
from sits_executor.backends.pytorch.slots import Slot, SlotPool


@dataclass(slots=True, eq=False)
class StagedRun:
    """`rows` None = the model does not batch. `bucket`: the rows it is padded to. `held` None =
    its shapes have no layout: `loose` are its inputs. `keep` holds on to what the device uses."""

    shapes: ShapeKey
    rows: int | None
    bucket: int | None
    layout: Layout | None
    held: HostSet | None
    loose: tuple[torch.Tensor, ...]
    keep: object = None

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The inputs without padding."""
        if self.held is None:
            return self.loose
        return tuple([place.tensor for place in self.held.views(self.rows).inputs])

    def discard(self) -> None:
        if self.held is not None and self.layout is not None:
            self.layout.give(self.held)
        self.held, self.keep = None, None


class TorchFlight:
    __slots__ = ("_device", "_outputs", "_slot", "_slots", "_staged")

    def __init__(
        self, device: TorchDevice, slots: SlotPool, slot: Slot, staged: StagedRun, outputs: Arrays
    ) -> None:
        self._device, self._slots = device, slots
        self._slot: Slot | None = slot
        self._staged, self._outputs = staged, outputs

    def done(self) -> bool:
        slot = self._slot
        if slot is None:
            return True
        try:
            return slot.event.query()
        except Exception as error:
            raise translated(error) from error

    def wait(self) -> None:
        if self._slot is None:
            return
        try:
            self._device.wait(self._slot.stream)
        except Exception as error:
            raise translated(error) from error

    def land(self) -> Arrays:
        if self._slot is not None:
            self._slots.give(self._slot)
            self._slot = None
        return self._outputs

    def release(self) -> None:
        """Also of a run that was never landed: its stream is then not free, it never ended."""
        self._staged.discard()
