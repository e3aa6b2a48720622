"""The reference transport: a grpc.aio server with raw-bytes handlers on one thread of its own.

An open stream costs two tasks and no thread. TLS, odd clients and bidirectional streams
are at home here; its cost for a unary call is why there is a native one as well.
"""

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import NoReturn

import grpc
import grpc.aio

from sits_core.errors import SitsError
from sits_core.rpc import Options, listen, server_options
from sits_core.settings import SettingsError
from sits_core.tls import ServerTls
from sits_preprocess.transport.call import (
    ArrivalsHandler,
    Call,
    Limits,
    Routes,
    StreamFactory,
    UnaryHandler,
    run_batched,
    run_unary,
)
from sits_preprocess.transport.grpcio_calls import Context, Stream, UnaryCall, settle, soon


class GrpcioTransport:
    """Serves `routes` on `bind` (host:port or unix:path)."""

    def __init__(
        self, bind: str, routes: Routes, limits: Limits, tls: ServerTls | None = None
    ) -> None:
        self._bind, self._routes, self._limits, self._tls = bind, routes, limits, tls
        self._started: Future[int] = Future()
        self._stop: Callable[[float], None] = lambda _grace_s: None
        self._thread = threading.Thread(target=self._run, name="front grpcio", daemon=True)
        self.port = 0
        self.open_streams = 0
        self.stream_ended_s = -math.inf
        """When the last stream ended, on the monotonic clock."""

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
        server = grpc.aio.server(options=_options(self._limits))
        handlers = _Handlers(self._routes, self._limits, loop, self._note_streams)
        server.add_generic_rpc_handlers((handlers,))
        port = listen(server, self._bind, self._tls)
        await server.start()
        stopped: asyncio.Future[float] = loop.create_future()
        self._stop = partial(soon, loop, settle, stopped)
        self._started.set_result(port)
        await server.stop(await stopped)

    def _note_streams(self, more: int) -> None:
        self.open_streams += more
        if more < 0:
            self.stream_ended_s = time.monotonic()

    def __repr__(self) -> str:
        return f"<GrpcioTransport {self._bind} port={self.port}>"


def _options(limits: Limits) -> Options:
    options = server_options(limits.message_bytes)
    if limits.shared_port:
        options = [("grpc.so_reuseport", 1) if o[0] == "grpc.so_reuseport" else o for o in options]
    if limits.connection_calls:
        options.append(("grpc.max_concurrent_streams", limits.connection_calls))
    if limits.connection_age_s:
        options.append(("grpc.max_connection_age_ms", round(limits.connection_age_s * 1000)))
    return options


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[type-arg] # generic in the stubs only
    """Finds the handler of a path and wraps it for grpc.aio."""

    def __init__(
        self,
        routes: Routes,
        limits: Limits,
        loop: asyncio.AbstractEventLoop,
        note_streams: Callable[[int], None],
    ) -> None:
        self._limits, self._loop, self._note_streams = limits, loop, note_streams
        unary = {path: partial(run_unary, handler) for path, handler in routes.unary.items()} | {
            path: partial(_run_alone, handler) for path, handler in routes.batched.items()
        }
        self._methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            path: grpc.unary_unary_rpc_method_handler(partial(self._unary, run))
            for path, run in unary.items()
        } | {
            path: grpc.stream_stream_rpc_method_handler(partial(self._stream, factory))
            for path, factory in routes.streams.items()
        }

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        return self._methods.get(handler_call_details.method)

    async def _unary(self, run: UnaryHandler, message: bytes, context: Context) -> bytes:
        call = UnaryCall(context, self._loop)
        run(message, call)
        try:
            outcome = await call.outcome
        except asyncio.CancelledError:
            call.cancelled()
            raise
        if isinstance(outcome, SitsError):
            await _abort(context, outcome)
        if outcome.trailers:
            context.set_trailing_metadata(outcome.trailers)
        return outcome.message

    async def _stream(self, factory: StreamFactory, _unused: object, context: Context) -> None:
        stream = Stream(context, self._loop, self._limits)
        try:
            handler = factory(stream)
        except SitsError as error:
            await _abort(context, error)
        self._note_streams(1)
        reader = asyncio.ensure_future(stream.read(handler))
        try:
            with contextlib.suppress(grpc.aio.InternalError):  # the client left while we wrote
                await stream.write()
        finally:
            reader.cancel()
            handler.on_end()
            self._note_streams(-1)


async def _abort(context: Context, error: SitsError) -> NoReturn:
    """A client that leaves while it is told is no fault of ours, and none for the log."""
    try:
        await context.abort(error.status, error.message, error.trailers())
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None


def _run_alone(handler: ArrivalsHandler, message: bytes, call: Call) -> None:
    """grpc.aio brings calls one by one."""
    run_batched(handler, [(message, call)])
