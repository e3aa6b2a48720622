"""The tensors of a batch on its way through a pipeline: whose memory they are in, their rows,
their precision."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, compress

from sits_channel.pool_reader import PoolReader, StaleReference
from sits_core import datatypes
from sits_core.datatypes import NUMPY_TYPES
from sits_protos.v1.common_pb2 import PayloadRef, Tensor

GiveBack = Callable[[str, Sequence[PayloadRef]], None]
"""Tells an executor that nobody reads these slots of its pool any more."""


@dataclass(slots=True)
class Held:
    """`owner` is the executor whose pool a reference points into, empty = the front's, which
    takes its slots back by itself. `alive` are the requests whose rows it has."""

    tensor: Tensor
    owner: str
    alive: tuple[int, ...]

    @property
    def by_reference(self) -> bool:
        return self.tensor.WhichOneof("payload") == "reference"

    @property
    def size_bytes(self) -> int:
        if self.by_reference:
            reference = self.tensor.reference
            return reference.take or reference.length - reference.skip
        return len(self.tensor.inline)

    def release(self, give_back: GiveBack) -> None:
        if self.owner and self.by_reference:
            give_back(self.owner, [self.tensor.reference])


def renamed(tensor: Tensor, name: str) -> Tensor:
    """The same payload under another name."""
    own = Tensor()
    own.CopyFrom(tensor)
    own.name = name
    return own


def inlined(tensor: Tensor, reader: PoolReader) -> Tensor:
    """The payload in the message. Raises `StaleReference`."""
    if tensor.WhichOneof("payload") != "reference":
        return tensor
    own = Tensor(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    own.request_bytes[:] = tensor.request_bytes
    with reader.view(tensor.reference) as view:
        own.inline = bytes(view)
        if not reader.still_valid(tensor.reference):
            raise StaleReference("a payload was taken back while it was read")
    return own


def cast(tensor: Tensor, datatype: str) -> Tensor:
    """An inline tensor in another precision."""
    array = datatypes.decode(tensor.inline, tensor.datatype, tensor.shape)
    own = Tensor(name=tensor.name, datatype=datatype, shape=tensor.shape)
    own.inline = datatypes.encode(array.astype(NUMPY_TYPES[datatype]))
    return own


def kept_rows(tensor: Tensor, rows: Sequence[int], keep: Iterable[bool]) -> Tensor:
    """An inline tensor without the rows of the requests that are not kept; `rows` are those of
    each request."""
    chosen = list(keep)
    sizes = list(tensor.request_bytes) or _even(len(tensor.inline), rows)
    starts = [0, *accumulate(sizes)]
    parts = [tensor.inline[starts[i] : starts[i + 1]] for i, kept in enumerate(chosen) if kept]
    own = Tensor(name=tensor.name, datatype=tensor.datatype)
    own.shape[:] = [sum(compress(rows, chosen)), *tensor.shape[1:]]
    own.request_bytes[:] = compress(tensor.request_bytes, chosen)
    own.inline = b"".join(parts)
    return own


def _even(length: int, rows: Sequence[int]) -> list[int]:
    row = length // sum(rows) if sum(rows) else 0
    return [row * count for count in rows]
