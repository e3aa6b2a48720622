"""`sits.v1.Inference/InferBatches`: every message a batch of requests, answers as they come."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from google.protobuf.message import DecodeError

from sits_core.clock import now_ns
from sits_core.errors import InvalidArgument, Unavailable
from sits_preprocess.batch_drafts import SitsMessage, response_of
from sits_preprocess.infer_stream import Defer
from sits_preprocess.inference import SHUTTING_DOWN, Ask, Inference
from sits_preprocess.oip.result import Result
from sits_preprocess.request import Request
from sits_preprocess.tally import Tally
from sits_preprocess.transport.call import Held, Outgoing, StreamCall, run_stream_step
from sits_protos.v1.inference_pb2 import (
    InferBatchesRequest,
    InferBatchesResponse,
    InferRequest,
    InferResponse,
)

MAX_REQUESTS = 4096
"""In one message: reading more would hold up other callers."""

COALESCE_BYTES = 1 << 20
"""Answers that are ready together share a message up to this size."""


class _Item:
    """One request of a batch, from its start to its answer on the wire."""

    __slots__ = ("batch_id", "index", "releases", "request", "response")

    def __init__(self, batch_id: int, index: int, releases: Held) -> None:
        self.batch_id, self.index, self.releases = batch_id, index, releases
        self.request: Request | None = None
        self.response: InferResponse | None = None


class InferBatches:
    """Handler of one stream. A request's error is in its answer; the stream goes on.

    A message that cannot be read at all, or holds too many requests, ends the stream.
    """

    def __init__(
        self,
        call: StreamCall,
        inference: Inference,
        defer: Defer,
        on_ended: Callable[["InferBatches"], None],
    ) -> None:
        self._call, self._inference, self._defer, self._on_ended = call, inference, defer, on_ended
        self._origin = inference.admission.origin(call)
        self._open: set[_Item] = set()
        self._tally = Tally()
        self._answers = Coalescer(call, self._tally.settle)

    def on_message(self, message: bytes) -> None:
        if self._tally.owe():
            self._defer(
                len(message), partial(run_stream_step, self._call, partial(self._start, message))
            )

    def on_half_close(self) -> None:
        self._tally.close(self._call.finish)

    def on_end(self) -> None:
        self._tally.abandon()
        for item in list(self._open):
            if (request := item.request) is not None:
                self._inference.cancel(request)
        self._on_ended(self)

    def drain(self) -> None:
        """End the stream, telling the client to go elsewhere, once all is answered."""
        self._tally.close(partial(self._call.fail, Unavailable(SHUTTING_DOWN)))

    def _start(self, message: bytes) -> None:
        """The message itself is owed until all its requests are."""
        batch = _parse(message)
        count = len(batch.requests)
        self._call.hold(Held(count))
        self._tally.owe(count)
        share = len(message) // count if count else 0
        items = [_Item(batch.batch_id, index, Held(1, share)) for index in range(count)]
        self._open.update(items)
        self._infer(batch.requests, items)
        self._call.hold(Held(-1, share * count - len(message)))
        self._tally.settle()

    def _infer(self, batch: Iterable[InferRequest], items: Sequence[_Item]) -> None:
        asks = [
            Ask(
                SitsMessage(request),
                self._origin,
                item.releases.size_bytes,
                partial(self._answered, item),
            )
            for request, item in zip(batch, items, strict=True)
        ]
        requests = self._inference.start(asks, now_ns())
        for item, request in zip(items, requests, strict=True):
            item.request = None if request.answered else request
            if self._tally.over:
                self._inference.cancel(request)

    def _answered(self, item: _Item, result: Result) -> None:
        item.response, item.request = response_of(result, item.index), None
        self._open.discard(item)
        self._answers.add(item)


class Coalescer:
    """Answers of one batch that are ready together leave in one message.

    They gather while the client's flow control holds up the message before.
    """

    def __init__(self, call: StreamCall, sent: Callable[[int], None]) -> None:
        self._call, self._sent = call, sent
        self._ready: deque[_Item] = deque()
        self._lock = threading.Lock()
        self._asked = False

    def add(self, item: _Item) -> None:
        with self._lock:
            self._ready.append(item)
            ask, self._asked = not self._asked, True
        if ask:
            self._call.send_from(self._take)

    def _take(self) -> Outgoing:
        with self._lock:
            items = self._group()
            self._asked = bool(self._ready)
        if self._asked:
            self._call.send_from(self._take)
        self._sent(len(items))
        message = InferBatchesResponse(
            batch_id=items[0].batch_id, responses=[i.response for i in items if i.response]
        )
        releases = Held(len(items), sum(item.releases.size_bytes for item in items))
        return Outgoing(message.SerializeToString(), releases)

    def _group(self) -> list[_Item]:
        items = [self._ready.popleft()]
        size = _size(items[0])
        while self._ready and self._ready[0].batch_id == items[0].batch_id:
            size += _size(self._ready[0])
            if size > COALESCE_BYTES:
                break
            items.append(self._ready.popleft())
        return items


def _size(item: _Item) -> int:
    return item.response.ByteSize() if item.response is not None else 0


def _parse(message: bytes) -> InferBatchesRequest:
    try:
        batch = InferBatchesRequest.FromString(message)
    except DecodeError:
        raise InvalidArgument(
            f"expected a sits.v1.InferBatchesRequest, got {len(message)} bytes that are none"
        ) from None
    if len(batch.requests) > MAX_REQUESTS:
        raise InvalidArgument(
            f"batch {batch.batch_id} has {len(batch.requests)} requests, "
            f"expected at most {MAX_REQUESTS}"
        )
    return batch
