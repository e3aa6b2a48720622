"""Where payloads lie: inputs go into this process's pool, outputs are read from others'."""

from collections.abc import Iterable, Sequence

from sits_channel.pool_reader import StaleReference
from sits_channel.shared_memory import SharedMemory
from sits_core.datatypes import BYTES
from sits_preprocess.request import TensorData
from sits_protos.v1.common_pb2 import PayloadRef


class Payloads:
    """Puts a column of a batch into one slot, so that it is written once and read in place.

    `threshold_bytes`: smaller columns go inline, a slot would cost more than it saves.
    """

    def __init__(self, memory: SharedMemory, threshold_bytes: int) -> None:
        self._memory, self._threshold_bytes = memory, max(1, threshold_bytes)

    def put(self, column: Sequence[TensorData], holder: str) -> PayloadRef | None:
        """Write the column; None when it is small or there is no room: it goes inline."""
        length = sum(len(tensor.data) for tensor in column)
        if self._memory.pool is None or length < self._threshold_bytes:
            return None
        slot = self._memory.pool.allocate(length, holder)
        if slot is None:
            return None
        position = 0
        for tensor in column:
            end = position + len(tensor.data)
            slot.view[position:end] = tensor.data
            position = end
        return slot.ref

    def free(self, slots: Iterable[PayloadRef]) -> None:
        """Give our slots back."""
        for ref in slots:
            if self._memory.pool is not None:
                self._memory.pool.release(ref)

    def fetch(self, ref: PayloadRef) -> bytes:
        """A copy of a payload in another process's pool. Raises `StaleReference`."""
        with self._memory.reader.view(ref) as view:
            data = bytes(view)
            if not self._memory.reader.still_valid(ref):
                raise StaleReference(f"payload in pool '{ref.pool}' was taken back too early")
        return data


def request_sizes(column: Sequence[TensorData]) -> list[int]:
    """Bytes of each request where rows differ in size; empty where they do not."""
    return [len(tensor.data) for tensor in column] if column[0].datatype == BYTES else []
