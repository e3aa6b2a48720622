"""`ModelStreamInfer`: many requests on one stream, answered in the order they came."""

import threading
from collections import deque
from collections.abc import Callable
from functools import partial

from sits_core.clock import now_ns
from sits_core.errors import SitsError, Unavailable
from sits_preprocess.inference import SHUTTING_DOWN, Ask, Inference
from sits_preprocess.oip.reading import OipMessage
from sits_preprocess.oip.result import Result
from sits_preprocess.oip.writing import stream_response_of
from sits_preprocess.request import Request
from sits_preprocess.tally import Tally
from sits_preprocess.transport.call import Held, Outgoing, StreamCall

GRPC_ERROR = "triton_grpc_error"
Defer = Callable[[int, Callable[[], None]], None]
"""Runs a step at once, or elsewhere when a message of that many bytes is slow to read."""


class _Place:
    """One request's place in the order of answers."""

    __slots__ = ("error", "message", "request", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.request: Request | None = None
        self.message: bytes | None = None
        self.error: SitsError | None = None


class InferStream:
    """Handler of one stream.

    A refused request is answered by a message with `error_message`, and the stream goes
    on; with the header `triton_grpc_error: true` the first error ends it with its status,
    after the answers to what came before. Answers wait for those before them.
    """

    def __init__(
        self,
        call: StreamCall,
        inference: Inference,
        defer: Defer,
        on_ended: Callable[["InferStream"], None],
    ) -> None:
        self._call, self._inference, self._defer, self._on_ended = call, inference, defer, on_ended
        self._origin = inference.admission.origin(call)
        self._error_ends = call.metadata.get(GRPC_ERROR, "").lower() == "true"
        self._places: deque[_Place] = deque()
        self._order = threading.Lock()
        self._tally = Tally()

    def on_message(self, message: bytes) -> None:
        if not self._tally.owe():
            return
        place = _Place(len(message))
        self._places.append(place)
        self._defer(len(message), partial(self._start, message, place))

    def on_half_close(self) -> None:
        self._tally.close(self._call.finish)

    def on_end(self) -> None:
        self._abandon()
        self._on_ended(self)

    def drain(self) -> None:
        """End the stream, telling the client to go elsewhere, once all is answered."""
        self._tally.close(partial(self._call.fail, Unavailable(SHUTTING_DOWN)))

    def _start(self, message: bytes, place: _Place) -> None:
        reply = partial(self._answered, place)
        ask = Ask(OipMessage(message), self._origin, place.size_bytes, reply)
        (request,) = self._inference.start([ask], now_ns())
        place.request = None if request.answered else request
        if self._tally.over:
            self._inference.cancel(request)

    def _answered(self, place: _Place, result: Result) -> None:
        message = stream_response_of(result).SerializeToString()
        place.error, place.message, place.request = result.error, message, None
        with self._order:
            sent, failed = self._send_complete()
        if failed is not None:
            self._call.fail(failed)
            self._abandon()
        self._tally.settle(sent)

    def _send_complete(self) -> tuple[int, SitsError | None]:
        """Send what is complete from the front on: how many, and the error that ends it all."""
        sent = 0
        while self._places and (message := self._places[0].message) is not None:
            if self._tally.over:
                break
            place = self._places.popleft()
            if self._error_ends and place.error is not None:
                return sent, place.error
            self._call.send(Outgoing(message, Held(1, place.size_bytes)))
            sent += 1
        return sent, None

    def _abandon(self) -> None:
        """Nobody waits for what is still in flight."""
        self._tally.abandon()
        for place in list(self._places):
            if (request := place.request) is not None:
                self._inference.cancel(request)
