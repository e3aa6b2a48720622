"""The fast transport: HTTP/2 and gRPC framing in Rust (`pygrpc-native`), outside the GIL.

One thread takes calls in batches; answers go back by call id from any thread. Streams go
to a grpcio transport behind it, on a private Unix socket. No TLS; pings too often are not
punished; a message over the limit is refused only after it has been received; refusals carry no
`grpc-retry-pushback-ms`, and say when to come back in their status details only.
"""

import math
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from pygrpc_native import NativeGrpcFront

from sits_core.clock import Deadline, now_ns
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
    Turn,
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
BACKLOG = 512
"""Taken at once while some are refused and more wait: only among all of them is the newest, and
those that are too late cost little. Receiving so many holds up other threads for a millisecond."""
METADATA_BYTES = 16 << 10
NO_LIMIT = (1 << 31) - 1
STOP_POLL_S = 0.01
FORWARD_S = 0.5
"""For the front to pass on to clients how their streams ended; it does not tell when it has."""
WRITE_S = 0.1
"""For it to write the last answers."""


class NativeTransport:
    """Serves `routes` on `bind` (host:port)."""

    def __init__(self, bind: str, routes: Routes, limits: Limits, io_threads: int = 1) -> None:
        """`io_threads` do the HTTP/2, outside of Python."""
        self._bind, self._routes, self._limits = bind, routes, limits
        self._io_threads = io_threads
        self._batched: Sequence[ArrivalsHandler] = tuple(routes.batched.values())
        self._unary: Sequence[UnaryHandler] = tuple(routes.unary.values())
        paths = list(routes.batched)
        self._turns = [(paths.index(path), turns) for path, turns in routes.turns.items()]
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
        ended_s = self._streams.stream_ended_s if self._streams is not None else -math.inf
        time.sleep(max(WRITE_S, ended_s + FORWARD_S - time.monotonic()))
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
                max_concurrent_streams=self._limits.connection_calls or NO_LIMIT,
                max_metadata_size=METADATA_BYTES,
                reuse_port=self._limits.shared_port,
            )
        except OSError:
            raise SettingsError(
                f"cannot listen on {self._bind}: is another process using it?"
            ) from None

    def _receive(self, front: NativeGrpcFront) -> None:
        limit = EVENTS
        while limit:
            limit = self._take(front, front.recv_batch_details(limit))

    def _take(self, front: NativeGrpcFront, events: "Sequence[DetailedEvent] | None") -> int:
        """Calls of a batched method go to its handler together, after all have been looked at.

        Returns how many to take next; 0 when the front is closed. Keeps nothing: the next call
        may be long in coming.
        """
        calls, limit, crowds = self._calls, self._limits.message_bytes, self._crowds()
        together: dict[int, list[tuple[bytes, Call]]] = {}
        for _kind, call_id, method, message, _key, details in events or ():
            if message is None or details is None:
                self._cancel(call_id, crowds)
                continue
            if method in crowds and len(message) <= limit:
                crowds[method].calls.append((call_id, message, details))
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
        for crowd in crowds.values():
            self._let_in(front, crowd)
        if events is None:
            return 0
        return BACKLOG if crowds and len(events) >= EVENTS else EVENTS

    def _crowds(self) -> "dict[int, _Crowd]":
        """By method, those of whose calls some will be refused; none of all in quiet times."""
        if self._stopping:
            return {}
        now = now_ns()
        turns = {method: turn for method, look in self._turns if (turn := look(now)) is not None}
        return {method: _Crowd(turn, now) for method, turn in turns.items()}

    def _let_in(self, front: NativeGrpcFront, crowd: "_Crowd") -> None:
        """What is refused never becomes a call; what is not goes before it."""
        taken: list[tuple[bytes, Call]] = []
        refused: list[tuple[int, SitsError]] = []
        for (call_id, message, details), error in zip(crowd.calls, crowd.refusals(), strict=True):
            if error is not None:
                if details[2] != 0.0:  # else the library has told its client so itself
                    refused.append((call_id, error))
                continue
            call = _NativeCall(front, self._calls, call_id, details, crowd.came_ns)
            self._calls[call_id] = call
            if call_id in crowd.cancelled:
                call.cancelled()
            taken.append((message, call))
        if taken:
            run_batched(crowd.turn.take, taken)
        crowd.turn.end(now_ns())
        answers = {error: _answer(error) for error in {error for _, error in refused}}
        for call_id, error in refused:
            front.fail(call_id, *answers[error])

    def _cancel(self, call_id: int, crowds: "Mapping[int, _Crowd]") -> None:
        call = self._calls.get(call_id)
        if call is not None:
            call.cancelled()
        else:
            for crowd in crowds.values():
                crowd.cancelled.add(call_id)

    def _refusal(self, message: bytes) -> SitsError:
        if self._stopping:
            return Unavailable("server is shutting down")
        limit = self._limits.message_bytes
        return ResourceExhausted(
            f"SERVER: Received message larger than max ({len(message)} vs. {limit})"
        )

    def __repr__(self) -> str:
        return f"<NativeTransport {self._bind} port={self.port} open={self._open()}>"


class _Crowd:
    """Calls of one method that came together while some are refused."""

    __slots__ = ("calls", "came_ns", "cancelled", "turn")

    def __init__(self, turn: Turn, came_ns: int) -> None:
        self.turn, self.came_ns = turn, came_ns
        self.calls: list[tuple[int, bytes, CallDetails]] = []
        self.cancelled: set[int] = set()

    def refusals(self) -> "list[SitsError | None]":
        """One for each of the calls, which are looked at from the newest to the oldest."""
        look = self.turn.refusal
        try:
            found = [look(message, each[0], each[2]) for _, message, each in reversed(self.calls)]
        except Exception as error:
            log.exception("turn.failed", error=type(error).__name__)
            return [None] * len(self.calls)
        found.reverse()
        return found


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
        now: int | None = None,
    ) -> None:
        """`now`: when `details` were right; None = just now."""
        left_s = details[2]
        self.deadline = (
            None if left_s is None or left_s > FOR_EVER_S else Deadline.after(left_s, now)
        )
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
        self._front.fail(self._id, *_answer(error))
        self._ended()

    def _ended(self) -> None:
        self._calls.pop(self._id, None)
        self._on_cancel = None


def _answer(error: SitsError) -> tuple[int, str, list[tuple[str, str | bytes]]]:
    return error.status.value[0], error.message, _trailers(error)


def _trailers(error: SitsError) -> list[tuple[str, str | bytes]]:
    """The library refuses to send a key that is a server's to set; the details say the same."""
    return [trailer for trailer in error.trailers() if trailer[0] != PUSHBACK_KEY]
