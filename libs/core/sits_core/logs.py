"""Structured logs: one JSON object a line, or readable lines on a console.

Secrets never get out: values of fields named like one are replaced, and so are
credentials inside URLs, wherever they stand.
"""

import asyncio
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping

import structlog
from structlog.typing import EventDict, Processor

from sits_core.settings import Settings

HIDDEN = "***"
REPEAT_AFTER_S = 60.0

_SECRET_NAME = re.compile(r"token|password|passwd|secret|authorization|api_?key", re.IGNORECASE)
# Greedy: a password may hold an unescaped "@".
_URL_CREDENTIALS = re.compile(r"""(?<=://)[^/\s"']+@""")
_BEARER = re.compile(r"""(?<=bearer )[^\s"']+""", re.IGNORECASE)


def configure(service: str, settings: Settings) -> None:
    """Set up structlog for this process; every line carries `service`.

    Libraries that use the standard `logging` (grpc, uvicorn, redis, opentelemetry) come
    out in the same form from warning level on, the same text at most once a minute.
    """
    level = getattr(logging, settings.log_level.upper())
    renderer: Processor = (
        structlog.processors.JSONRenderer(default=str)
        if settings.log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _named(service),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            hide_secret_fields,
            _without_credentials(renderer),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # Looked up for each line, so that whoever replaces stderr is respected.
        logger_factory=lambda *_: structlog.WriteLogger(sys.stderr),
    )
    logging.basicConfig(level=logging.WARNING, handlers=[_LibraryHandler()], force=True)
    logging.captureWarnings(True)  # else Python prints them past the log


def hide_secret_fields(_logger: object, _method: str, fields: EventDict) -> EventDict:
    """Replace texts in fields named like a secret, nested ones too."""
    return {name: _hidden(name, value) for name, value in fields.items()}


def _hidden(name: str, value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _hidden(str(key), inner) for key, inner in value.items()}
    # Numbers are counts, as in tokens=128.
    secret = _SECRET_NAME.search(name) and not isinstance(value, int | float | None)
    return HIDDEN if secret else value


def without_credentials(text: str) -> str:
    """`text` with `user:password@` of URLs and bearer tokens hidden."""
    return _BEARER.sub(HIDDEN, _URL_CREDENTIALS.sub(HIDDEN + "@", text))


def _without_credentials(renderer: Processor) -> Processor:
    """Looks at the finished line: a URL may stand in any field, or in a traceback."""

    def render(logger: object, method: str, fields: EventDict) -> str:
        return without_credentials(str(renderer(logger, method, fields)))

    return render


class RateLimited:
    """Lets a line through once per key and interval, and tells how many it held back.

    if (held := limit("otlp.export_failed")) is not None:
        log.warning("otlp.export_failed", suppressed=held)

    Keys beyond `MAX_KEYS` share one interval.
    """

    MAX_KEYS = 1000

    def __init__(
        self,
        interval_s: float = REPEAT_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._interval_s, self._clock = interval_s, clock
        self._last: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()

    def __call__(self, key: str) -> int | None:
        """How many were held back since the last line, or None: hold this one back too."""
        now = self._clock()
        with self._lock:
            if key not in self._last and len(self._last) >= self.MAX_KEYS:
                key = ""
            last_s, held = self._last.get(key, (float("-inf"), 0))
            if now - last_s < self._interval_s:
                self._last[key] = last_s, held + 1
                return None
            self._last[key] = now, 0
            return held


def _named(service: str) -> Processor:
    """Not a context variable: those are lost on every new thread."""

    def add(_logger: object, _method: str, fields: EventDict) -> EventDict:
        fields["service"] = service
        return fields

    return add


def _tells_of_cancellation(record: logging.LogRecord) -> bool:
    """grpc.aio logs an error where a client leaves while the end of its call is written."""
    error = record.exc_info[1] if record.exc_info else None
    return isinstance(error, asyncio.CancelledError)


class _LibraryHandler(logging.Handler):
    """Sends records of the standard `logging` through structlog."""

    def __init__(self) -> None:
        super().__init__()
        self._limit = RateLimited()
        self._log = structlog.get_logger()

    def emit(self, record: logging.LogRecord) -> None:
        if _tells_of_cancellation(record):
            return
        # The unformatted text: what differs between repetitions is in its arguments.
        held = self._limit(f"{record.name} {str(record.msg)[:200]}")
        if held is None:
            return
        try:
            self._log.log(
                record.levelno,
                "library.log",
                logger=record.name,
                message=record.getMessage(),
                exc_info=record.exc_info,
                suppressed=held,
            )
        except Exception:  # noqa: BLE001 - a log line must not break what wanted to log it
            self.handleError(record)
