"""The seam between the front door and whatever speaks HTTP/2 for it.

Handlers are callbacks: they return at once and answer later, from any thread.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import structlog

from sits_core.clock import Deadline
from sits_core.errors import Internal, SitsError, Unavailable

log = structlog.get_logger()

FOR_EVER_S = 1e8
"""Clients without a deadline may show up with one some centuries away."""

Pairs = Sequence[tuple[str, str | bytes]]
"""Request headers as they came, binary ones included."""

Metadata = Mapping[str, str]
"""Textual request headers by lower-case name; binary ones (`-bin`) are left out."""

Trailers = Sequence[tuple[str, str]]
"""Metadata that goes with the status."""


class Call(Protocol):
    """A unary call. Of `respond` and `fail`, the first to be called takes effect."""

    @property
    def metadata(self) -> Metadata: ...
    @property
    def deadline(self) -> Deadline | None: ...
    @property
    def peer(self) -> str: ...

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """`callback` runs when the client gives up or its deadline passes: at once if it
        already has, possibly twice, from any thread. It must not block."""
        ...

    def respond(self, message: bytes, trailers: Trailers = ()) -> None: ...
    def fail(self, error: SitsError) -> None: ...


class Held(NamedTuple):
    """What unanswered messages of a stream occupy."""

    requests: int = 0
    size_bytes: int = 0


class Outgoing(NamedTuple):
    """A response of a stream, and what is given back once it has been sent."""

    message: bytes
    releases: Held = Held()


class StreamCall(Protocol):
    """The sending half of a bidirectional stream. All calls return at once.

    The transport holds (1 request, its bytes) for every message it hands over, and reads
    no further while more is held than its limits allow. Handlers hold more when a message
    carries several requests, and give back with the responses that answer them.
    """

    @property
    def metadata(self) -> Metadata: ...
    @property
    def deadline(self) -> Deadline | None: ...
    @property
    def peer(self) -> str: ...

    def hold(self, more: Held) -> None: ...

    def send(self, response: Outgoing) -> None:
        """Queue a response; it is sent when the client's flow control takes it."""
        ...

    def send_from(self, source: Callable[[], Outgoing]) -> None:
        """Queue a response that is made at the moment at which it can be sent."""
        ...

    def finish(self) -> None:
        """End with status OK after everything queued has been sent."""
        ...

    def fail(self, error: SitsError) -> None:
        """End with the error after everything queued has been sent."""
        ...


class StreamHandler(Protocol):
    """The receiving half; the transport calls one method at a time, none may block."""

    def on_message(self, message: bytes) -> None: ...

    def on_half_close(self) -> None:
        """The client sends nothing more, and still reads."""
        ...

    def on_end(self) -> None:
        """The stream is over, whoever ended it; called once, last, and always."""
        ...


UnaryHandler = Callable[[bytes, Call], None]
Arrivals = Sequence[tuple[bytes, Call]]
"""Calls, each with its message, that a transport took in at once: one or many."""
ArrivalsHandler = Callable[[Arrivals], None]


LATER: Final = Unavailable("there are newer ones")
"""Refuses nothing: the call is to be looked at again, together with those that come next."""


class Turn(Protocol):
    """Looks at calls that came together before anything is made of them, the newest first."""

    def refusal(self, message: bytes, metadata: Pairs, left_s: float | None) -> SitsError | None:
        """What to refuse a call with, or `LATER`; None = it is to be taken. `left_s`: until its
        deadline."""
        ...

    def take(self, arrivals: Arrivals) -> None:
        """Those that are to be taken."""
        ...

    def end(self, now: int) -> None:
        """What is to be taken has been; the others are about to be told."""
        ...


Turns = Callable[[int], Turn | None]
"""For calls that came at a moment; None = all of them are to be taken."""

StreamFactory = Callable[[StreamCall], StreamHandler]


@dataclass(frozen=True, slots=True)
class Routes:
    """Handlers by full method path, such as `/inference.GRPCInferenceService/ModelInfer`.

    Unary calls of a method in `batched` are handed over together as they came in. A transport
    may look at them by `turns` first.
    """

    batched: Mapping[str, ArrivalsHandler] = field(default_factory=dict)
    unary: Mapping[str, UnaryHandler] = field(default_factory=dict)
    streams: Mapping[str, StreamFactory] = field(default_factory=dict)
    turns: Mapping[str, Turns] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limits:
    """`message_bytes` holds in both directions, the next two for each stream; 0 s and 0 calls = no
    limit. `shared_port`: other processes may listen on it too."""

    message_bytes: int
    stream_requests: int
    stream_bytes: int
    connection_age_s: float = 0.0
    shared_port: bool = False
    connection_calls: int = 0


class Transport(Protocol):
    """A server on one address. `start` raises `SettingsError` when it cannot listen."""

    @property
    def port(self) -> int: ...

    def start(self) -> None: ...

    def stop(self, grace_s: float) -> None:
        """Accept nothing new at once; calls still open after `grace_s` are cancelled."""
        ...


def text_metadata(pairs: Iterable[tuple[str, str | bytes]]) -> Metadata:
    return {key: value for key, value in pairs if isinstance(value, str)}


def run_unary(handler: UnaryHandler, message: bytes, call: Call) -> None:
    """Call the handler; whatever it raises becomes the call's error."""
    try:
        handler(message, call)
    except SitsError as error:
        call.fail(error)
    except Exception as error:
        log.exception("call.failed", error=type(error).__name__)
        call.fail(Internal("internal error"))


def run_batched(handler: ArrivalsHandler, arrivals: Arrivals) -> None:
    """Call the handler, which answers each call; should it raise, those still open fail."""
    try:
        handler(arrivals)
    except Exception as error:
        log.exception("calls.failed", error=type(error).__name__)
        for _message, call in arrivals:
            call.fail(Internal("internal error"))


def run_stream_step(stream: StreamCall, step: Callable[[], None]) -> None:
    """Call a method of a stream's handler; whatever it raises ends the stream."""
    try:
        step()
    except SitsError as error:
        stream.fail(error)
    except Exception as error:
        log.exception("stream.failed", error=type(error).__name__)
        stream.fail(Internal("internal error"))
