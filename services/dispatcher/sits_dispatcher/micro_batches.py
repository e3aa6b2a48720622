"""Splits a batch that is larger than an executor may take into micro-batches."""

from collections.abc import Iterator, Sequence
from itertools import accumulate

from sits_channel import wire
from sits_protos.v1.common_pb2 import Tensor
from sits_protos.v1.link_pb2 import BatchHeader, LinkMessage, RequestHeader


class Part:
    """Requests `first` to `end` of a batch, with their own header and body."""

    __slots__ = ("body", "first", "header")

    def __init__(self, header: BatchHeader, body: bytes | memoryview, first: int = 0) -> None:
        self.header, self.body, self.first = header, body, first


def micro_batches(header: BatchHeader, body: memoryview, limit_rows: int) -> list[Part]:
    """The batch as it is when it fits `limit_rows` (0 = no limit), else split between requests.

    Only a split parses the body. A single request is never split: its rows belong
    together. Raises `wire.MalformedMessage`.
    """
    if limit_rows == 0 or header.rows <= limit_rows or header.requests <= 1:
        return [Part(header, body)]
    whole = wire.parse(body)
    return [_part(header, whole, first, end) for first, end in _ranges(whole.requests, limit_rows)]


def _ranges(requests: Sequence[RequestHeader], limit: int) -> Iterator[tuple[int, int]]:
    first = rows = 0
    sizes = [r.rows for r in requests]
    for position, size in enumerate(sizes):
        if rows and rows + size > limit:
            yield first, position
            first, rows = position, 0
        rows += size
    yield first, len(sizes)


def _part(header: BatchHeader, whole: LinkMessage, first: int, end: int) -> Part:
    requests = whole.requests[first:end]
    starts = [0, *accumulate(r.rows for r in whole.requests)]
    inputs = [_rows(t, first, end, starts) for t in whole.inputs]
    own = BatchHeader()
    own.CopyFrom(header)
    own.requests, own.rows = end - first, starts[end] - starts[first]
    own.payload_bytes = sum(_size(t) for t in inputs)
    own.inline_bytes = sum(_size(t) for t in inputs if t.WhichOneof("payload") == "inline")
    body = LinkMessage(requests=requests, inputs=inputs)
    return Part(own, body.SerializeToString(), first)


def _rows(tensor: Tensor, first: int, end: int, starts: list[int]) -> Tensor:
    """The rows of requests `first` to `end`."""
    begin, stop = _byte_range(tensor, first, end, starts)
    part = Tensor(name=tensor.name, datatype=tensor.datatype)
    part.shape[:] = [starts[end] - starts[first], *tensor.shape[1:]]
    part.request_bytes[:] = tensor.request_bytes[first:end]
    if tensor.WhichOneof("payload") == "reference":
        part.reference.CopyFrom(tensor.reference)
        part.reference.skip += begin
        part.reference.take = stop - begin
    else:
        part.inline = tensor.inline[begin:stop]
    return part


def _byte_range(tensor: Tensor, first: int, end: int, starts: list[int]) -> tuple[int, int]:
    if tensor.request_bytes:
        offsets = [0, *accumulate(tensor.request_bytes)]
        return offsets[first], offsets[end]
    row = _size(tensor) // starts[-1] if starts[-1] else 0
    return starts[first] * row, starts[end] * row


def _size(tensor: Tensor) -> int:
    if tensor.WhichOneof("payload") == "reference":
        reference = tensor.reference
        return reference.take or reference.length - reference.skip
    return len(tensor.inline)
