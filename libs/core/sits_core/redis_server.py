"""Calls to Redis that heal: the primary looked up anew when it was demoted, errors
counted, and logged once a minute at most."""

import time
from collections.abc import Callable
from threading import Lock
from typing import TypeVar

import structlog
from prometheus_client import CollectorRegistry, Counter
from redis import Redis
from redis.exceptions import ReadOnlyError, RedisError

from sits_core.redis_connection import WrongServer, credentials, open_client
from sits_core.redis_url import parse
from sits_core.registry import RegistryUnavailable
from sits_core.settings import Settings, SettingsError

log = structlog.get_logger()

T = TypeVar("T")

LOG_PERIOD_S = 60.0


class RedisServer:
    """One server, or the primary that Sentinels name. Connects at the first call.

    `generation` grows whenever all connections have to be opened anew.
    """

    def __init__(self, settings: Settings, metrics: CollectorRegistry) -> None:
        self.url = parse(settings.secret("redis_url") or "")
        self._login = credentials(self.url, settings)
        self.client: Redis = open_client(self.url, self._login, settings)
        self.generation = 0
        self._outage = _Outage(str(self.url))
        self._errors = Counter(
            "sits_redis_errors_total",
            "Redis calls that failed, retry included, by operation",
            ["operation"],
            registry=metrics,
        )

    def check(self) -> None:
        """Ask once what it is. Raises `SettingsError` when SITS cannot work with its kind;
        that it cannot be reached is no error here."""
        try:
            self.client.ping()
        except WrongServer as error:
            raise SettingsError(str(error)) from None
        except (RedisError, OSError) as error:
            self.failed("connect", error)

    def call(self, operation: str, use: Callable[[Redis], T]) -> T:
        """`use(client)`, which may run twice. Raises `RegistryUnavailable`."""
        try:
            try:
                result = use(self.client)
            except RedisError as error:
                if not _demoted(error):
                    raise
                self._errors.labels(operation).inc()
                self._reconnect()
                result = use(self.client)
        except (RedisError, OSError) as error:
            raise self.failed(operation, error) from None
        self._outage.ended()
        return result

    def failed(self, operation: str, error: Exception) -> RegistryUnavailable:
        """Count and log it. The result says what happened, and holds no secret."""
        self._errors.labels(operation).inc()
        if _demoted(error):
            self._reconnect()
        reason = self._redacted(f"{type(error).__name__}: {error}")
        self._outage.seen(operation, reason)
        return RegistryUnavailable(f"Redis at {self.url}, {operation}: {reason}")

    def close(self) -> None:
        self.client.connection_pool.disconnect()

    def _reconnect(self) -> None:
        """The address may lead to another server by now; open connections never will.

        Those in use are left to their threads, which see the same error."""
        self.generation += 1
        self.client.connection_pool.disconnect(inuse_connections=False)

    def _redacted(self, text: str) -> str:
        """Servers older than Redis 6 repeat what they did not understand."""
        try:
            password = self._login.password() if self._login else ""
        except RedisError:
            return text
        return text.replace(password, "***") if password else text

    def __repr__(self) -> str:
        return f"<RedisServer {self.url} generation={self.generation}>"


class _Outage:
    """One log line when Redis goes, one a minute while it is gone, one when it is back."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._lock = Lock()
        self._next_line_s = 0.0
        self._unlogged = 0
        self._announced = False

    def seen(self, operation: str, reason: str) -> None:
        with self._lock:
            self._unlogged += 1
            if time.monotonic() < self._next_line_s:
                return
            errors, self._unlogged = self._unlogged, 0
            self._next_line_s, self._announced = time.monotonic() + LOG_PERIOD_S, True
        log.warning(
            "redis.unavailable",
            server=self._server,
            operation=operation,
            reason=reason,
            errors=errors,
        )

    def ended(self) -> None:
        if not self._announced:
            return
        with self._lock:
            announced, self._announced = self._announced, False
        if announced:
            log.info("redis.available", server=self._server)


def _demoted(error: Exception) -> bool:
    """Whether a write came to a replica. Redis 6 puts the word inside a script's error."""
    return isinstance(error, ReadOnlyError) or (
        isinstance(error, RedisError) and "READONLY" in str(error)
    )
