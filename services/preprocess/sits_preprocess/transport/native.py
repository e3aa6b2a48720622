"""The fast transport: HTTP/2 and gRPC framing in Rust (`pygrpc-native`), outside the GIL.

One thread takes calls in batches; answers go back by call id from any thread. Streams go
to a grpcio transport behind it, on a private Unix socket. No TLS; pings too often are not
punished; a message over the limit is refused only after it has been received; refusals carry no
`grpc-retry-pushback-ms`, and say when to come back in their status details only.
"""

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from pygrpc_native import NativeGrpcFront

from sits_core.clock import Deadline
from sits_core.errors import PUSHBACK_KEY, ResourceExhausted, SitsError, Unavailable
from sits_core.settings import SettingsError
from sits_preprocess.transport.call import (
    FOR_EVER_S,
    ArrivalsHandler,
    Call,
    Limits,
    Metadata,
    Routes,
    Trailers,
    UnaryHandler,
    run_batched,
    run_unary,
    text_metadata,
)
from sits_preprocess.transport.grpcio import GrpcioTransport

if TYPE_CHECKING:  # these two exist in the stubs only
    from pygrpc_native._native import CallDetails, DetailedEvent

log = structlog.get_logger()

EVENTS = 64
"""Calls taken at once; more would delay the first of them."""
METADATA_BYTES = 16 << 10
STOP_POLL_S = 0.01
FORWARD_S = 0.5
"""For the front to pass on to clients how their streams ended; it does not tell when it has."""


class NativeTransport:
    """Serves `routes` on `bind` (host:port)."""

    def __init__(self, bind: str, routes: Routes, limits: Limits, io_threads: int = 1) -> None:
        """`io_threads` do the HTTP/2, outside of Python."""
        self._bind, self._routes, self._limits = bind, routes, limits
        self._io_threads = io_threads
        self._batched: Sequence[ArrivalsHandler] = tuple(routes.batched.values())
        self._unary: Sequence[UnaryHandler] = tuple(routes.unary.values())
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
        while self._open() and not limit.passed():
            time.sleep(STOP_POLL_S)
        if self._streams is not None:
            time.sleep(max(0.0, self._streams.stream_ended_s + FORWARD_S - time.monotonic()))
        # First the front: what the streams' server has not taken yet would end as CANCELLED, which
        # clients do not try again. The end of their connection is UNAVAILABLE to them.
        if self._front is not None:
            self._front.close()
        if self._streams is not None:
            self._streams.stop(0)
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _open(self) -> int:
        streams = self._streams.open_streams if self._streams is not None else 0
        return len(self._calls) + streams

    def _listen(self) -> NativeGrpcFront:
        paths = [(path, False) for path in (*self._routes.batched, *self._routes.unary)]
        try:
            return NativeGrpcFront(
                self._bind,
                paths,
                io_threads=self._io_threads,
                call_details=True,
                max_metadata_size=METADATA_BYTES,
                reuse_port=self._limits.shared_port,
            )
        except OSError:
            raise SettingsError(
                f"cannot listen on {self._bind}: is another process using it?"
            ) from None

    def _receive(self, front: NativeGrpcFront) -> None:
        while self._take(front, front.recv_batch_details(EVENTS)):
            pass

    def _take(self, front: NativeGrpcFront, events: "Sequence[DetailedEvent] | None") -> bool:
        """Calls of a batched method go to its handler together, after all have been looked at.

        False when the front is closed. Keeps nothing: the next call may be long in coming.
        """
        calls, limit = self._calls, self._limits.message_bytes
        together: dict[int, list[tuple[bytes, Call]]] = {}
        for _kind, call_id, method, message, _key, details in events or ():
            if message is None or details is None:
                self._cancel(call_id)
                continue
            call = calls[call_id] = _NativeCall(front, calls, call_id, details)
            if len(message) > limit or self._stopping:
                call.fail(self._refusal(message))
            elif method < len(self._batched):
                together.setdefault(method, []).append((message, call))
            else:
                run_unary(self._unary[method - len(self._batched)], message, call)
        for method, arrivals in together.items():
            run_batched(self._batched[method], arrivals)
        return events is not None

    def _cancel(self, call_id: int) -> None:
        call = self._calls.get(call_id)
        if call is not None:
            call.cancelled()

    def _refusal(self, message: bytes) -> SitsError:
        if self._stopping:
            return Unavailable("server is shutting down")
        limit = self._limits.message_bytes
        return ResourceExhausted(
            f"SERVER: Received message larger than max ({len(message)} vs. {limit})"
        )

    def __repr__(self) -> str:
        return f"<NativeTransport {self._bind} port={self.port} open={self._open()}>"


class _NativeCall:
    """The front keeps the first answer to a call id and ignores others."""

    __slots__ = (
        "_calls", "_cancelled", "_details", "_front", "_id", "_on_cancel", "deadline",
    )  # fmt: skip

    def __init__(
        self,
        front: NativeGrpcFront,
        calls: "dict[int, _NativeCall]",
        call_id: int,
        details: "CallDetails",
    ) -> None:
        left_s = details[2]
        self.deadline = None if left_s is None or left_s > FOR_EVER_S else Deadline.after(left_s)
        self._front, self._calls, self._id, self._details = front, calls, call_id, details
        self._on_cancel: Callable[[], None] | None = None
        self._cancelled = False

    @property
    def metadata(self) -> Metadata:
        return text_metadata(self._details[0])

    @property
    def peer(self) -> str:
        return self._details[1]

    def on_cancel(self, callback: Callable[[], None]) -> None:
        self._on_cancel = callback
        if self._cancelled:
            callback()
        if self._id not in self._calls:
            self._on_cancel = None

    def cancelled(self) -> None:
        self._cancelled = True
        if (callback := self._on_cancel) is not None:
            callback()

    def respond(self, message: bytes, trailers: Trailers = ()) -> None:
        self._front.respond(self._id, message, None, trailers or None)
        self._ended()

    def fail(self, error: SitsError) -> None:
        self._front.fail(self._id, error.status.value[0], error.message, _trailers(error))
        self._ended()

    def _ended(self) -> None:
        self._calls.pop(self._id, None)
        self._on_cancel = None


def _trailers(error: SitsError) -> list[tuple[str, str | bytes]]:
    """The library refuses to send a key that is a server's to set; the details say the same."""
    return [trailer for trailer in error.trailers() if trailer[0] != PUSHBACK_KEY]
