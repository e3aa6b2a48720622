"""A link: a long-lived bidirectional stream of whole messages between two services.

`LinkClient` connects and reconnects; `link_handler` accepts. Both hand messages to a
`LinkListener` on the link's own reader thread. Underneath is one gRPC stream a pair; where
both ends share memory, messages go through rings, and the stream tells that the peer lives.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile
from typing import Literal, NamedTuple, Protocol

import grpc
import structlog

from sits_channel.bounded import Pressure
from sits_channel.link_outgoing import Outgoing
from sits_channel.ring import RingBroken, RingEnd
from sits_channel.ring_files import Rings
from sits_core.logs import RateLimited

log = structlog.get_logger()

QUEUE_MESSAGES = 4096
QUEUE_BYTES = 256 << 20
"""Messages, and their bytes, that may wait for a slow peer before writes are refused."""

RECONNECT_FIRST_S, RECONNECT_LAST_S = 0.05, 1.0


class Link:
    """The sending half of an open link. Safe to use from any thread."""

    def __init__(self, name: str, peer: str, *, decided: bool = True) -> None:
        """Not `decided`: which way messages go is said later, before the link opens."""
        self.name, self.peer = name, peer
        self.transport: Literal["grpc", "ring"] = "grpc"
        self._outgoing = Outgoing(QUEUE_MESSAGES, QUEUE_BYTES, decided=decided)
        self._ring: RingEnd | None = None
        self._cut = False
        self._on_close: Callable[[], object] = lambda: None

    def write(self, message: bytes) -> Pressure:
        """Never blocks. Not accepted means full or closed; nothing was sent then."""
        return self._outgoing.write(message)

    def close(self) -> None:
        """What waits is not sent, what came is not delivered any more."""
        self._cut = True
        self._outgoing.close(discard=True)
        self._on_close()

    @property
    def closed(self) -> bool:
        return self._outgoing.closed

    def way(self, *, shared_payloads: bool) -> str:
        """For operators: how bytes travel, as in sits.v1.PeerState."""
        return f"{self.transport}+shm" if shared_payloads else self.transport

    def _decide(self, ring: RingEnd | None) -> None:
        self._ring = ring
        self.transport = "grpc" if ring is None else "ring"
        self._outgoing.decide(ring)

    def _end(self) -> None:
        """The stream is over: nothing is sent any more; what came is still delivered."""
        self._outgoing.close(discard=True)
        if (ring := self._ring) is not None:
            ring.close()

    def _forget(self) -> None:
        """Nobody reads any more: the memory goes now and not when a collector breaks the
        cycle of link and call."""
        self._outgoing.close(discard=True)
        self._ring = None

    def _messages(self) -> Iterator[bytes]:
        try:
            yield from self._outgoing.messages()
        except RingBroken as error:
            log.warning("link.ring_broken", peer=self.peer, reason=str(error))
            self.close()

    def _incoming(self, stream: Iterable[bytes]) -> Iterator[bytes]:
        """Messages of the peer. A ring's come before the end of the stream, which carries none."""
        if self._ring is not None:
            yield from takewhile(lambda _: not self._cut, self._ring.messages())
        yield from stream

    def __repr__(self) -> str:
        return f"<Link {self.name} to {self.peer} {self._outgoing!r}>"


class LinkListener(Protocol):
    """What a service does with its links. Calls come from the link's reader thread.

    `opened` and `closed` come once each, `received` in between. None of them should raise;
    the link is closed when one does. A malformed message is the listener's to report.
    """

    def opened(self, link: Link) -> None: ...
    def received(self, link: Link, message: bytes) -> None: ...
    def closed(self, link: Link, reason: str) -> None: ...


class LinkClient:
    """Keeps one link to `address` open until `stop`. Its listener hears of every life of it."""

    def __init__(
        self,
        address: str,
        method: str,
        listener: LinkListener,
        open_channel: Callable[[str], grpc.Channel],
        metadata: tuple[tuple[str, str], ...] = (),
        rings: Rings | None = None,
    ) -> None:
        """Without `rings` the link stays on its gRPC stream."""
        self.address = address
        self._method, self._listener, self._metadata = method, listener, metadata
        self._open_channel, self._rings = open_channel, rings
        self._stopping = threading.Event()
        self._link: Link | None = None
        self._may_warn = RateLimited()
        self._thread = threading.Thread(target=self._run, name=f"link {address}", daemon=True)

    @property
    def link(self) -> Link | None:
        """The open link, None while there is none."""
        return self._link

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._link is not None:
            self._link.close()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(2.0)

    def _run(self) -> None:
        delay_s = RECONNECT_FIRST_S
        while not self._stopping.is_set():
            if self._one_life():
                delay_s = RECONNECT_FIRST_S
            self._stopping.wait(delay_s)
            delay_s = min(delay_s * 2, RECONNECT_LAST_S)

    def _one_life(self) -> bool:
        """Connect, read until the end. Whether the peer ever answered."""
        link = Link(self._method, self.address, decided=False)
        with self._open_channel(self.address) as channel:
            call = self._call(channel, link)
            in_ring = link.transport == "ring"
            ending = _deliver(link, link._incoming(call), self._listener, at_once=in_ring)
            self._link = None
        if not ending.opened:
            self._warn(ending.reason)
        return ending.opened

    def _call(self, channel: grpc.Channel, link: Link) -> "grpc.CallIterator[bytes]":
        """Start the stream and decide which way messages go. Keeps no hold on the ring: a
        call that failed holds its frames as long as it lives."""
        offered = self._rings.offer() if self._rings is not None else None
        offer = () if offered is None else (offered.metadata,)
        stub = channel.stream_stream(self._method, None, None)
        call = stub(link._messages(), metadata=(*self._metadata, *offer))
        link._on_close = call.cancel
        self._link = link
        if self._stopping.is_set():  # after `stop` looked for a link to close
            link.close()
        ring = None if offered is None else offered.settle(call.initial_metadata() or ())
        link._decide(ring)
        if ring is not None and not call.add_callback(link._end):
            link._end()  # the call was over before
        return call

    def _warn(self, reason: str) -> None:
        if self._stopping.is_set() or (held := self._may_warn("unreachable")) is None:
            return
        log.warning("link.unreachable", peer=self.address, reason=reason, suppressed=held)


def link_handler(
    service: str,
    listener: LinkListener,
    greeting: Callable[[], bytes],
    rings: Rings | None = None,
) -> "grpc.GenericRpcHandler[bytes, bytes]":
    """Server side: serves `/<service>/Link`. `greeting` makes the first message sent.
    Without `rings` links stay on their gRPC streams."""

    def serve(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        link = Link(f"/{service}/Link", context.peer())
        link._on_close = context.cancel
        if rings is not None:
            ring, answer = rings.accept(context.invocation_metadata())
            link._decide(ring)
            context.send_initial_metadata(answer)
        if not context.add_callback(link._end):
            return  # the peer has left already
        link.write(greeting())
        incoming = link._incoming(requests)
        threading.Thread(
            target=_serve, args=(link, incoming, listener), name=f"link {link.peer}", daemon=True
        ).start()
        yield from link._messages()

    method = grpc.stream_stream_rpc_method_handler(serve)
    return grpc.method_handlers_generic_handler(service, {"Link": method})


def _serve(link: Link, requests: Iterator[bytes], listener: LinkListener) -> None:
    _deliver(link, requests, listener, at_once=True)
    with contextlib.suppress(RuntimeError):  # the call is over
        link.close()


class _Ending(NamedTuple):
    opened: bool
    reason: str


def _deliver(
    link: Link, messages: Iterable[bytes], listener: LinkListener, *, at_once: bool = False
) -> _Ending:
    """Hand messages to the listener until they end. The link opens with the first of them,
    which proves that the peer is there, or `at_once`."""
    opened, reason = False, "closed by the peer"
    try:
        if at_once:
            opened = True
            listener.opened(link)
        for message in messages:
            if not opened:
                opened = True
                listener.opened(link)
            listener.received(link, message)
            del message  # it may be large, and the next may be long in coming
    except grpc.RpcError as error:
        reason = _reason(error)
    except RingBroken as error:
        reason = f"broken ring: {error}"
    except Exception:
        log.exception("link.listener_failed", link=repr(link))
        reason = "the listener failed"
    finally:
        link._forget()
        if opened:
            listener.closed(link, reason)
    return _Ending(opened, reason)


def _reason(error: grpc.RpcError) -> str:
    code: grpc.StatusCode | None = getattr(error, "code", lambda: None)()
    if code is None:
        return "the call ended"
    return f"{code.name}: {getattr(error, 'details', lambda: '')()}"
