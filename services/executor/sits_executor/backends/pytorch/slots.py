"""A slot is one stream and what is captured for it: one run at a time."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count

import torch

from sits_executor.backends.pytorch.device import Event, Graph, Place, Pool, Stream, TorchDevice
from sits_executor.backends.pytorch.host_sets import ShapeKey

GraphKey = tuple[ShapeKey, int | None]
"""Shapes and rows; None rows = the model does not batch."""


@dataclass(slots=True)
class Captured:
    """A graph, and the device tensors that it reads and writes; `sources` and `targets` are where
    the same lie."""

    graph: Graph
    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]
    sources: tuple[Place, ...]
    targets: tuple[Place, ...]
    used: int = 0


@dataclass(slots=True, eq=False)
class Slot:
    """`statics` are the whole input and output tensors of a layout, shared by its graphs: they
    never run at the same time. For the same reason all graphs share one memory `pool`."""

    stream: Stream
    event: Event
    pool: Pool
    graphs: dict[GraphKey, Captured] = field(default_factory=dict)
    statics: dict[ShapeKey, tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]] = field(
        default_factory=dict
    )
    _uses: "count[int]" = field(default_factory=lambda: count(1))

    @classmethod
    def on(cls, device: TorchDevice) -> "Slot":
        return cls(device.stream(), device.event(), device.pool())

    def find(self, key: GraphKey) -> Captured | None:
        captured = self.graphs.get(key)
        if captured is not None:
            captured.used = next(self._uses)
        return captured

    def evict(self, limit: int) -> list[GraphKey]:
        """Make room for one more: away goes what was not used for longest."""
        gone: list[GraphKey] = []
        while self.graphs and len(self.graphs) >= limit:
            key = min(self.graphs, key=lambda k: self.graphs[k].used)
            del self.graphs[key]
            gone.append(key)
        for shapes in {key[0] for key in gone} - {key[0] for key in self.graphs}:
            self.statics.pop(shapes, None)
        return gone


class SlotPool:
    """Who may use which slot. Captures go before runs, or they would never get one."""

    def __init__(self, slots: Iterable[Slot]) -> None:
        self.slots = tuple(slots)
        self._free = list(self.slots)
        self._claimed: set[Slot] = set()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)

    @property
    def free(self) -> int:
        return len(self._free) if not self._claimed else len(set(self._free) - self._claimed)

    def try_take(self) -> Slot | None:
        with self._lock:
            if not self._claimed:
                return self._free.pop() if self._free else None
            for slot in self._free:
                if slot not in self._claimed:
                    self._free.remove(slot)
                    return slot
            return None

    def take(self, slot: Slot) -> None:
        """This one; waits until it is free."""
        with self._changed:
            self._claimed.add(slot)
            self._changed.wait_for(lambda: slot in self._free)
            self._claimed.discard(slot)
            self._free.remove(slot)

    def give(self, slot: Slot) -> None:
        with self._lock:
            self._free.append(slot)
            if self._claimed:
                self._changed.notify_all()

    def __repr__(self) -> str:
        return f"<SlotPool {self.free}/{len(self.slots)} free>"
