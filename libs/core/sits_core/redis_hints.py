"""Listens on the channel of changes. Whoever subscribes polls as well: hints may be lost."""

import random
import threading
from collections.abc import Callable
from contextlib import suppress

from redis.exceptions import RedisError

from sits_core.redis_server import RedisServer
from sits_core.registry import Change

RETRY_S = 1.0
STOP_S = 5.0
"""More than a connect and an answer may take."""
_LISTEN_S = 0.2
"""How long one look lasts: how late a stop or a new primary may be noticed."""


class Hints:
    """One thread and one connection for all subscribers of a process, made for the first."""

    def __init__(self, server: RedisServer, channel: str, rng: random.Random) -> None:
        self._server, self._channel, self._rng = server, channel, rng
        self._lock = threading.Lock()
        self._subscribers: tuple[Change, ...] = ()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def subscribe(self, on_change: Change) -> Callable[[], None]:
        with self._lock:
            self._subscribers += (on_change,)
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(
                    target=self._listen, name="redis hints", daemon=True
                )
                self._thread.start()
        return lambda: self._unsubscribe(on_change)

    def close(self) -> None:
        """Waits for the thread: whoever closes the connections next would close one in use."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(STOP_S)

    def _unsubscribe(self, on_change: Change) -> None:
        with self._lock:
            kept = list(self._subscribers)
            with suppress(ValueError):
                kept.remove(on_change)
            self._subscribers = tuple(kept)

    def _listen(self) -> None:
        while not self._closed.is_set():
            try:
                self._one_subscription()
            except (RedisError, OSError) as error:
                self._server.failed("subscribe", error)
                self._closed.wait(RETRY_S * self._rng.uniform(0.5, 1.5))

    def _one_subscription(self) -> None:
        """Until the connection breaks or leads to the wrong server."""
        generation = self._server.generation
        client = self._server.client
        with client.pubsub() as pubsub:  # type: ignore[no-untyped-call] # redis-py
            pubsub.subscribe(self._channel)
            while generation == self._server.generation and not self._closed.is_set():
                message = pubsub.get_message(timeout=_LISTEN_S)
                # Once the server has confirmed: what changed before nobody told us.
                if message is not None and message["type"] in ("subscribe", "message"):
                    self._tell()

    def _tell(self) -> None:
        for on_change in self._subscribers:
            on_change()

    def __repr__(self) -> str:
        return f"<Hints {self._channel} for {len(self._subscribers)}>"
