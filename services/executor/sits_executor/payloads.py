"""Where tensors lie: reads inputs from the pools of other processes, puts outputs into our own."""

from collections.abc import Iterable

from sits_channel.pool import PayloadPool
from sits_channel.pool_reader import PoolReader, StaleReference
from sits_protos.v1.common_pb2 import PayloadRef, Tensor


class Reservation:
    """Slots for the outputs of one batch. Call it for room; `undo` gives all of it back."""

    def __init__(self, pool: PayloadPool | None, threshold_bytes: int, holder: str) -> None:
        self._pool, self._threshold_bytes, self._holder = pool, threshold_bytes, holder
        self._taken: list[PayloadRef] = []

    def __call__(self, length: int) -> tuple[memoryview, PayloadRef] | None:
        if self._pool is None or length < max(1, self._threshold_bytes):
            return None
        slot = self._pool.allocate(length, holder=self._holder)
        if slot is None:
            return None
        self._taken.append(slot.ref)
        return slot.view, slot.ref

    def undo(self) -> None:
        for ref in self._taken:
            if self._pool is not None:
                self._pool.release(ref)
        self._taken.clear()


class Payloads:
    """`pool` None = outputs always travel inline, which is always right."""

    def __init__(self, reader: PoolReader, pool: PayloadPool | None, threshold_bytes: int) -> None:
        self._reader, self._pool, self._threshold_bytes = reader, pool, threshold_bytes

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
        return Reservation(self._pool if by_reference else None, self._threshold_bytes, holder)

    def release(self, refs: Iterable[PayloadRef]) -> None:
        for ref in refs:
            if self._pool is not None:
                self._pool.release(ref)

    def release_all(self, holder: str) -> None:
        """Slots of a link that is gone."""
        if self._pool is not None:
            self._pool.release_all(holder)
