"""Calls and streams of the grpcio transport: answers from any thread carried to its loop."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import grpc.aio

from sits_core.clock import Deadline
from sits_core.errors import SitsError
from sits_preprocess.transport.call import (
    FOR_EVER_S,
    Held,
    Limits,
    Metadata,
    Outgoing,
    StreamHandler,
    Trailers,
    run_stream_step,
    text_metadata,
)

Context = grpc.aio.ServicerContext[Any, Any]


def settle(future: asyncio.Future[Any], value: object) -> None:
    if not future.done():
        future.set_result(value)


def soon(loop: asyncio.AbstractEventLoop, step: Callable[..., object], *args: object) -> None:
    """Run `step` on the loop's thread, unless the loop has ended: then nobody is there."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(step, *args)


class _CallFacts:
    """Metadata, deadline and peer of a call."""

    def __init__(self, context: Context) -> None:
        self.metadata: Metadata = text_metadata(context.invocation_metadata() or ())
        left_s = context.time_remaining()
        self.deadline = None if left_s is None or left_s > FOR_EVER_S else Deadline.after(left_s)
        self.peer = context.peer()


class Answered(NamedTuple):
    message: bytes
    trailers: Trailers


class UnaryCall(_CallFacts):
    """Answers from any thread are carried to the loop; there the first one settles it."""

    def __init__(self, context: Context, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(context)
        self._loop = loop
        self._on_cancel: Callable[[], None] | None = None
        self._cancelled = self._answered = False
        self.outcome: asyncio.Future[Answered | SitsError] = loop.create_future()

    def on_cancel(self, callback: Callable[[], None]) -> None:
        self._on_cancel = callback
        if self._cancelled:
            callback()
        if self._answered:
            self._on_cancel = None

    def cancelled(self) -> None:
        self._cancelled = True
        if self._on_cancel is not None:
            self._on_cancel()

    def respond(self, message: bytes, trailers: Trailers = ()) -> None:
        self._settle(Answered(message, trailers))

    def fail(self, error: SitsError) -> None:
        self._settle(error)

    def _settle(self, outcome: Answered | SitsError) -> None:
        self._answered, self._on_cancel = True, None
        soon(self._loop, settle, self.outcome, outcome)


class _End(NamedTuple):
    error: SitsError | None


class Stream(_CallFacts):
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
            soon(self._loop, self._room.set)

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
            error = item.error
            await self._context.abort(error.status, error.message, error.trailers())

    def _queue(self, item: Outgoing | Callable[[], Outgoing] | _End) -> None:
        self._outgoing.append(item)
        soon(self._loop, self._wake.set)

    def _has_room(self) -> bool:
        return (
            self._held.requests < self._limits.stream_requests
            and self._held.size_bytes < self._limits.stream_bytes
        )
