"""The fast transport: HTTP/2 and gRPC framing in Rust (`pygrpc-native`), outside the GIL.

One thread takes calls in batches; answers go back by call id from any thread. Streams go
to a grpcio transport behind it, on a private Unix socket. No TLS; pings too often are not
punished; a message over the limit is refused only after it has been received.
"""

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog
from pygrpc_native import EVENT_CANCEL, NativeGrpcFront

from sits_core.clock import Deadline
from sits_core.errors import ResourceExhausted, SitsError, Unavailable
from sits_core.settings import SettingsError
from sits_preprocess.transport.call import (
    FOR_EVER_S,
    Limits,
    Metadata,
    Routes,
    UnaryHandler,
    run_unary,
    text_metadata,
)
from sits_preprocess.transport.grpcio import GrpcioTransport

log = structlog.get_logger()

EVENTS = 64
"""Calls taken at once; more would delay the first of them."""
METADATA_BYTES = 16 << 10
STOP_POLL_S = 0.01

Details = tuple[tuple[tuple[str, str | bytes], ...], str, float | None]
Event = tuple[int, int, int, bytes | None, object, Details | None]


class NativeTransport:
    """Serves `routes` on `bind` (host:port)."""

    def __init__(self, bind: str, routes: Routes, limits: Limits) -> None:
        self._bind, self._routes, self._limits = bind, routes, limits
        self._handlers: Sequence[UnaryHandler] = tuple(routes.unary.values())
        self._calls: dict[int, _NativeCall] = {}
        self._stopping = False
        self._front: NativeGrpcFront | None = None
        self._streams: GrpcioTransport | None = None
        self._directory: str | None = None
        self.port = 0

    def start(self) -> None:
        front = self._front = self._listen()
        self._directory = tempfile.mkdtemp(prefix="sits-front-")
        socket = str(Path(self._directory) / "streams")
        streams = Routes(streams=self._routes.streams)
        self._streams = GrpcioTransport(f"unix:{socket}", streams, self._limits)
        self._streams.start()
        front.set_fallback(socket)
        self.port = front.bound_port
        front.start()
        threading.Thread(target=self._receive, args=(front,), name="front", daemon=True).start()

    def stop(self, grace_s: float) -> None:
        self._stopping = True
        limit = Deadline.after(grace_s)
        if self._streams is not None:
            self._streams.stop(grace_s)
        while self._calls and not limit.passed():
            time.sleep(STOP_POLL_S)
        if self._front is not None:
            self._front.close()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _listen(self) -> NativeGrpcFront:
        paths = [(path, False) for path in self._routes.unary]
        try:
            return NativeGrpcFront(
                self._bind, paths, call_details=True, max_metadata_size=METADATA_BYTES
            )
        except OSError:
            raise SettingsError(
                f"cannot listen on {self._bind}: is another process using it?"
            ) from None

    def _receive(self, front: NativeGrpcFront) -> None:
        while self._take(front, front.recv_batch_details(EVENTS)):
            pass

    def _take(self, front: NativeGrpcFront, events: Sequence[Event] | None) -> bool:
        """False when the front is closed. Keeps nothing: the next call may be long in coming."""
        for kind, call_id, method, payload, _key, details in events or ():
            if kind == EVENT_CANCEL:
                if (call := self._calls.get(call_id)) is not None:
                    call.cancelled()
            elif payload is not None and details is not None:
                call = _NativeCall(front, self._calls, call_id, details)
                self._handle(self._handlers[method], payload, call)
        return events is not None

    def _handle(self, handler: UnaryHandler, message: bytes, call: "_NativeCall") -> None:
        limit = self._limits.message_bytes
        if self._stopping:
            call.fail(Unavailable("server is shutting down"))
        elif len(message) > limit:
            text = f"SERVER: Received message larger than max ({len(message)} vs. {limit})"
            call.fail(ResourceExhausted(text))
        else:
            run_unary(handler, message, call)

    def __repr__(self) -> str:
        return f"<NativeTransport {self._bind} port={self.port} open={len(self._calls)}>"


class _NativeCall:
    """The front keeps the first answer to a call id and ignores others."""

    __slots__ = (
        "_calls", "_cancelled", "_front", "_id", "_on_cancel", "deadline", "metadata", "peer",
    )  # fmt: skip

    def __init__(
        self,
        front: NativeGrpcFront,
        calls: "dict[int, _NativeCall]",
        call_id: int,
        details: Details,
    ) -> None:
        metadata, self.peer, left_s = details
        self.metadata: Metadata = text_metadata(metadata)
        self.deadline = None if left_s is None or left_s > FOR_EVER_S else Deadline.after(left_s)
        self._front, self._calls, self._id = front, calls, call_id
        self._on_cancel: Callable[[], None] | None = None
        self._cancelled = False
        calls[call_id] = self

    def on_cancel(self, callback: Callable[[], None]) -> None:
        self._on_cancel = callback
        if self._cancelled:
            callback()

    def cancelled(self) -> None:
        self._cancelled = True
        if self._on_cancel is not None:
            self._on_cancel()

    def respond(self, message: bytes) -> None:
        self._front.respond(self._id, message)
        self._calls.pop(self._id, None)

    def fail(self, error: SitsError) -> None:
        self._front.fail(self._id, error.status.value[0], error.message)
        self._calls.pop(self._id, None)
