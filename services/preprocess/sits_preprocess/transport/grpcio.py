"""The reference transport: a grpc.aio server with raw-bytes handlers on one thread of its own.

An open stream costs two tasks and no thread. TLS, odd clients and bidirectional streams
are at home here; its cost for a unary call is why there is a native one as well.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

import grpc
import grpc.aio

from sits_core.clock import Deadline
from sits_core.errors import SitsError
from sits_core.rpc import server_options
from sits_core.settings import SettingsError
from sits_preprocess.transport.call import (
    FOR_EVER_S,
    Held,
    Limits,
    Metadata,
    Outgoing,
    Routes,
    StreamFactory,
    StreamHandler,
    UnaryHandler,
    run_stream_step,
    run_unary,
    text_metadata,
)

Context = grpc.aio.ServicerContext[Any, Any]


class GrpcioTransport:
    """Serves `routes` on `bind` (host:port or unix:path)."""

    def __init__(self, bind: str, routes: Routes, limits: Limits) -> None:
        self._bind, self._routes, self._limits = bind, routes, limits
        self._started: Future[int] = Future()
        self._stop: Callable[[float], None] = lambda _grace_s: None
        self._thread = threading.Thread(target=self._run, name="front grpcio", daemon=True)
        self.port = 0

    def start(self) -> None:
        self._thread.start()
        self.port = self._started.result()

    def stop(self, grace_s: float) -> None:
        self._stop(grace_s)
        if self._thread.is_alive():
            self._thread.join(grace_s + 5.0)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except SettingsError as error:
            self._started.set_exception(error)

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        server = grpc.aio.server(options=server_options(self._limits.message_bytes))
        server.add_generic_rpc_handlers((_Handlers(self._routes, self._limits, loop),))
        try:
            port = server.add_insecure_port(self._bind)
        except RuntimeError:
            raise SettingsError(
                f"cannot listen on {self._bind}: is another process using it?"
            ) from None
        await server.start()
        stopped: asyncio.Future[float] = loop.create_future()
        self._stop = partial(_soon, loop, _settle, stopped)
        self._started.set_result(port)
        await server.stop(await stopped)

    def __repr__(self) -> str:
        return f"<GrpcioTransport {self._bind} port={self.port}>"


def _settle(future: asyncio.Future[Any], value: object) -> None:
    if not future.done():
        future.set_result(value)


def _soon(loop: asyncio.AbstractEventLoop, step: Callable[..., object], *args: object) -> None:
    """Run `step` on the loop's thread, unless the loop has ended: then nobody is there."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(step, *args)


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[type-arg] # generic in the stubs only
    """Finds the handler of a path and wraps it for grpc.aio."""

    def __init__(self, routes: Routes, limits: Limits, loop: asyncio.AbstractEventLoop) -> None:
        self._limits, self._loop = limits, loop
        self._methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            path: grpc.unary_unary_rpc_method_handler(partial(self._unary, handler))
            for path, handler in routes.unary.items()
        } | {
            path: grpc.stream_stream_rpc_method_handler(partial(self._stream, factory))
            for path, factory in routes.streams.items()
        }

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        return self._methods.get(handler_call_details.method)

    async def _unary(self, handler: UnaryHandler, message: bytes, context: Context) -> bytes:
        call = _UnaryCall(context, self._loop)
        run_unary(handler, message, call)
        try:
            outcome = await call.outcome
        except asyncio.CancelledError:
            call.cancelled()
            raise
        if isinstance(outcome, SitsError):
            await context.abort(outcome.status, outcome.message)
        return outcome

    async def _stream(self, factory: StreamFactory, _unused: object, context: Context) -> None:
        stream = _Stream(context, self._loop, self._limits)
        try:
            handler = factory(stream)
        except SitsError as error:
            await context.abort(error.status, error.message)
        reader = asyncio.ensure_future(stream.read(handler))
        try:
            await stream.write()
        finally:
            reader.cancel()
            handler.on_end()


class _CallFacts:
    """Metadata, deadline and peer of a call."""

    def __init__(self, context: Context) -> None:
        self.metadata: Metadata = text_metadata(context.invocation_metadata() or ())
        left_s = context.time_remaining()
        self.deadline = None if left_s is None or left_s > FOR_EVER_S else Deadline.after(left_s)
        self.peer = context.peer()


class _UnaryCall(_CallFacts):
    """Answers from any thread are carried to the loop; there the first one settles it."""

    def __init__(self, context: Context, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(context)
        self._loop = loop
        self._on_cancel: Callable[[], None] | None = None
        self._cancelled = False
        self.outcome: asyncio.Future[bytes | SitsError] = loop.create_future()

    def on_cancel(self, callback: Callable[[], None]) -> None:
        self._on_cancel = callback
        if self._cancelled:
            callback()

    def cancelled(self) -> None:
        self._cancelled = True
        if self._on_cancel is not None:
            self._on_cancel()

    def respond(self, message: bytes) -> None:
        self._settle(message)

    def fail(self, error: SitsError) -> None:
        self._settle(error)

    def _settle(self, outcome: bytes | SitsError) -> None:
        _soon(self._loop, _settle, self.outcome, outcome)


class _End(NamedTuple):
    error: SitsError | None


class _Stream(_CallFacts):
    """Both halves of a bidirectional stream; reading and writing are the loop thread's."""

    def __init__(self, context: Context, loop: asyncio.AbstractEventLoop, limits: Limits) -> None:
        super().__init__(context)
        self._context, self._loop, self._limits = context, loop, limits
        self._outgoing: deque[Outgoing | Callable[[], Outgoing] | _End] = deque()
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._held = Held()
        self._lock = threading.Lock()

    def hold(self, more: Held) -> None:
        with self._lock:
            held, was_full = self._held, not self._has_room()
            self._held = Held(held.requests + more.requests, held.size_bytes + more.size_bytes)
            room = was_full and self._has_room()
        if room:
            _soon(self._loop, self._room.set)

    def send(self, response: Outgoing) -> None:
        self._queue(response)

    def send_from(self, source: Callable[[], Outgoing]) -> None:
        self._queue(source)

    def finish(self) -> None:
        self._queue(_End(None))

    def fail(self, error: SitsError) -> None:
        self._queue(_End(error))

    async def read(self, handler: StreamHandler) -> None:
        """Hand messages over while there is room; returns at the client's half-close."""
        while True:
            while not self._has_room():
                self._room.clear()
                await self._room.wait()
            message = await self._context.read()
            if message is grpc.aio.EOF:  # type: ignore[attr-defined] # grpc-stubs lacks it
                run_stream_step(self, handler.on_half_close)
                return
            self.hold(Held(1, len(message)))
            run_stream_step(self, partial(handler.on_message, message))

    async def write(self) -> None:
        """Send what is queued, one message at a time, until the end is queued and reached."""
        while True:
            while not self._outgoing:
                self._wake.clear()
                await self._wake.wait()
            item = self._outgoing.popleft()
            if isinstance(item, _End):
                break
            response = item if isinstance(item, Outgoing) else item()
            await self._context.write(response.message)
            self.hold(Held(-response.releases.requests, -response.releases.size_bytes))
        if item.error is not None:
            await self._context.abort(item.error.status, item.error.message)

    def _queue(self, item: Outgoing | Callable[[], Outgoing] | _End) -> None:
        self._outgoing.append(item)
        _soon(self._loop, self._wake.set)

    def _has_room(self) -> bool:
        return (
            self._held.requests < self._limits.stream_requests
            and self._held.size_bytes < self._limits.stream_bytes
        )
