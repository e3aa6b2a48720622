"""The fast transport: HTTP/2 and gRPC framing in Rust (`pygrpc-native`), outside the GIL.

One thread takes calls in batches; answers go back by call id from any thread. Streams go
to a grpcio transport behind it, on a private Unix socket. No TLS; pings too often are not
punished; a message over the limit is refused only after it has been received; refusals carry no
`grpc-retry-pushback-ms`, and say when to come back in their status details only.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import structlog
from pygrpc_native import NativeGrpcFront

from sits_core.clock import Deadline, now_ns
from sits_core.errors import PUSHBACK_KEY, ResourceExhausted, SitsError, Unavailable
from sits_core.processors import prefer
from sits_core.scratch import Scratch
from sits_core.settings import SettingsError
from sits_preprocess.transport.call import (
    FOR_EVER_S,
    LATER,
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

    _Waiting = tuple[int, bytes, CallDetails, int]
    """A call of which nothing has been made: its id, message, and details as of a moment."""

log = structlog.get_logger()

EVENTS = 64
"""Calls taken at once; more would delay the first of them."""
BACKLOG = 512
"""Taken at once while some are refused and more wait; receiving so many holds up other threads for
a millisecond. Then all that wait are received before any is looked at: only among all of them is
the newest, and those that are too late cost little."""
MOST = 16 * BACKLOG
METADATA_BYTES = 16 << 10
IO_THREAD = "grpc-native-io"
NO_LIMIT = (1 << 31) - 1
STOP_POLL_S = 0.01
FORWARD_S = 0.5
"""For the front to pass on to clients how their streams ended; it does not tell when it has."""
WRITE_S = 0.1
"""For it to write the last answers."""


class NativeTransport:
    """Serves `routes` on `bind` (host:port)."""

    def __init__(
        self, bind: str, routes: Routes, limits: Limits, io_threads: int = 1, io_nice: int = 0
    ) -> None:
        """`io_threads` do the HTTP/2, outside of Python, at that niceness."""
        self._bind, self._routes, self._limits = bind, routes, limits
        self._io_threads, self._io_nice = io_threads, io_nice
        self._batched: Sequence[ArrivalsHandler] = tuple(routes.batched.values())
        self._unary: Sequence[UnaryHandler] = tuple(routes.unary.values())
        paths = list(routes.batched)
        self._turns = [(paths.index(path), turns) for path, turns in routes.turns.items()]
        self._calls: dict[int, _NativeCall] = {}
        self._held: dict[int, list[_Waiting]] = {}
        self._stopping = False
        self._front: NativeGrpcFront | None = None
        self._streams: GrpcioTransport | None = None
        self._scratch: Scratch | None = None
        self.port = 0

    def start(self) -> None:
        front = self._front = self._listen()
        self._scratch = Scratch("front")
        socket = str(self._scratch.path / "streams")
        streams = Routes(streams=self._routes.streams)
        self._streams = GrpcioTransport(f"unix:{socket}", streams, self._limits)
        self._streams.start()
        front.set_fallback(socket)
        self.port = front.bound_port
        front.start()
        prefer(IO_THREAD, self._io_nice, "SITS_PREPROCESS_IO_NICE")
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
        if self._scratch is not None:
            self._scratch.remove()

    def _open(self) -> int:
        streams = self._streams.open_streams if self._streams is not None else 0
        return len(self._calls) + sum(map(len, self._held.values())) + streams

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
            limit = self._take(front, self._events(front, limit))

    def _events(self, front: NativeGrpcFront, limit: int) -> "list[DetailedEvent] | None":
        """What came; waits for it unless some that came are still to be looked at."""
        events = front.recv_batch_details(limit, 0 if self._held else None)
        more = events if limit == BACKLOG else None
        while events is not None and more and len(more) == BACKLOG and len(events) < MOST:
            more = front.recv_batch_details(BACKLOG, 0)
            events += more or ()
        return events

    def _take(self, front: NativeGrpcFront, events: "Sequence[DetailedEvent] | None") -> int:
        """Calls of a batched method go to its handler together, after all have been looked at.

        Returns how many to take next; 0 when the front is closed. Keeps nothing: the next call
        may be long in coming.
        """
        calls, limit, now = self._calls, self._limits.message_bytes, now_ns()
        crowds = self._crowds(now)
        together = self._no_longer_held(front, crowds)
        for _kind, call_id, method, message, _key, details in events or ():
            if message is None or details is None:
                self._cancel(call_id, crowds)
                continue
            if method in crowds and len(message) <= limit:
                crowds[method].calls.append((call_id, message, details, now))
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
        for method, crowd in crowds.items():
            if held := self._let_in(front, crowd, now):
                self._held[method] = held
        if events is None:
            return 0
        return BACKLOG if crowds and len(events) >= EVENTS else EVENTS

    def _crowds(self, now: int) -> "dict[int, _Crowd]":
        """By method, those of whose calls some will be refused; none of all in quiet times."""
        if self._stopping:
            return {}
        turns = {method: turn for method, look in self._turns if (turn := look(now)) is not None}
        return {method: _Crowd(turn, self._held.pop(method, [])) for method, turn in turns.items()}

    def _no_longer_held(
        self, front: NativeGrpcFront, crowds: "Mapping[int, _Crowd]"
    ) -> dict[int, list[tuple[bytes, Call]]]:
        """By method, what was to be looked at again and now need not be."""
        together: dict[int, list[tuple[bytes, Call]]] = {}
        for method in [method for method in self._held if method not in crowds]:
            held = self._held.pop(method)
            together[method] = [(each[1], self._call(front, each)) for each in held]
        return together

    def _call(self, front: NativeGrpcFront, each: "_Waiting") -> "_NativeCall":
        call_id, _, details, came_ns = each
        call = self._calls[call_id] = _NativeCall(front, self._calls, call_id, details, came_ns)
        return call

    def _let_in(self, front: NativeGrpcFront, crowd: "_Crowd", now: int) -> "list[_Waiting]":
        """What is refused never becomes a call; what is not goes before it. Returns what is to be
        looked at again."""
        taken: list[tuple[bytes, Call]] = []
        refused: list[tuple[int, SitsError]] = []
        held: list[_Waiting] = []
        for each, error in zip(crowd.held + crowd.calls, crowd.refusals(now), strict=True):
            if error is not None and error is not LATER:
                if each[2][2] != 0.0:  # else the library has told its client so itself
                    refused.append((each[0], error))
            elif error is LATER and each[0] not in crowd.cancelled:
                held.append(each)
            else:
                call = self._call(front, each)
                if each[0] in crowd.cancelled:
                    call.cancelled()
                taken.append((each[1], call))
        if taken:
            run_batched(crowd.turn.take, taken)
        crowd.turn.end(now_ns())
        answers = {error: _answer(error) for error in {error for _, error in refused}}
        for call_id, error in refused:
            front.fail(call_id, *answers[error])
        return held

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
    """Calls of one method that wait together while some are refused, the oldest first."""

    __slots__ = ("calls", "cancelled", "held", "turn")

    def __init__(self, turn: Turn, held: "list[_Waiting]") -> None:
        self.turn, self.held = turn, held
        self.calls: list[_Waiting] = []
        self.cancelled: set[int] = set()

    def refusals(self, now: int) -> "list[SitsError | None]":
        """One for each of the calls, which are looked at from the newest to the oldest."""
        look = self.turn.refusal
        try:
            found = [look(message, each[0], each[2]) for _, message, each, _ in self.calls[::-1]]
            for _, message, each, came_ns in self.held[::-1]:
                left_s = each[2]
                left_s = None if left_s is None else left_s - (now - came_ns) / 1e9
                found.append(look(message, each[0], left_s))
        except Exception as error:
            log.exception("turn.failed", error=type(error).__name__)
            return [None] * (len(self.held) + len(self.calls))
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
