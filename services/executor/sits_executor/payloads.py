"""Where tensors lie: reads inputs from the pools of other processes, puts outputs into our own."""

import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple

from sits_channel.pool import PayloadPool
from sits_channel.pool_reader import PoolReader, StaleReference
from sits_core.clock import now_ns
from sits_protos.v1.common_pb2 import PayloadRef, Tensor

PATIENCE_S = 60.0
"""A full pool takes back what nobody released for so long: its reader is dead. One that is
only slow finds the slot's generation changed, and fails that one request."""

Room = tuple[memoryview, PayloadRef]


class Reservation:
    """Slots for the outputs of one batch. Call it for room; `undo` gives all of it back.

    `asked_bytes` and `inline_bytes` tell how much was asked for, and got no room.
    """

    def __init__(self, payloads: "Payloads", holder: str, by_reference: bool) -> None:
        self._payloads, self._holder, self._by_reference = payloads, holder, by_reference
        self._taken: list[PayloadRef] = []
        self.asked_bytes = self.inline_bytes = 0

    def __call__(self, length: int) -> Room | None:
        room = self._payloads.take(length, self._holder) if self._by_reference else None
        self.asked_bytes += length
        if room is None:
            self.inline_bytes += length
        else:
            self._taken.append(room[1])
        return room

    def undo(self) -> None:
        self._payloads.release(self._taken)
        self._taken.clear()


class _Lent(NamedTuple):
    since_ns: int
    holder: str
    ref: PayloadRef


class Payloads:
    """`pool` None = outputs always travel inline, which is always right."""

    def __init__(
        self,
        reader: PoolReader,
        pool: PayloadPool | None,
        threshold_bytes: int,
        clock: Callable[[], int] = now_ns,
    ) -> None:
        self._reader, self._pool, self._clock = reader, pool, clock
        self._threshold_bytes = max(1, threshold_bytes)
        self._lent: dict[int, _Lent] = {}
        self._lock = threading.Lock()

    def read(self, ref: PayloadRef) -> memoryview:
        """The bytes, not copied. Raises `StaleReference`; so may `verify` afterwards."""
        return self._reader.view(ref)

    def verify(self, tensors: Iterable[Tensor]) -> None:
        """What was read was the payload all the time, or `StaleReference`."""
        for tensor in tensors:
            if tensor.HasField("reference") and not self._reader.still_valid(tensor.reference):
                raise StaleReference(f"payload of '{tensor.name}' was taken back while it was read")

    def reserve(self, holder: str, by_reference: bool) -> Reservation:
        """`by_reference`: the batch's sender can read our pool and will release the slots."""
        return Reservation(self, holder, by_reference)

    def take(self, length: int, holder: str) -> Room | None:
        """A slot, or None when the payload is small, or there is no room."""
        if self._pool is None or length < self._threshold_bytes:
            return None
        slot = self._pool.allocate(length, holder=holder)
        if slot is None and self._reclaim():
            slot = self._pool.allocate(length, holder=holder)
        if slot is None:
            return None
        with self._lock:
            self._lent[slot.ref.generation] = _Lent(self._clock(), holder, slot.ref)
        return slot.view, slot.ref

    def release(self, refs: Iterable[PayloadRef]) -> None:
        for ref in refs:
            if self._pool is not None and self._pool.release(ref):
                with self._lock:
                    self._lent.pop(ref.generation, None)

    def release_all(self, holder: str) -> None:
        """Slots of a link that is gone."""
        self._take_back(lambda lent: lent.holder == holder)

    def _reclaim(self) -> int:
        limit = self._clock() - int(PATIENCE_S * 1e9)
        return self._take_back(lambda lent: lent.since_ns <= limit)

    def _take_back(self, chosen: Callable[[_Lent], bool]) -> int:
        """How many slots."""
        with self._lock:
            refs = [lent.ref for lent in self._lent.values() if chosen(lent)]
        self.release(refs)
        return len(refs)
