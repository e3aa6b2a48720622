"""Prometheus metrics: one registry a process, label values bounded."""

import threading
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server

from sits_core.settings import SettingsError, host_of

OVERFLOW = "other"
"""Label value shared by all names beyond the limit, and by unknown ones."""


class BoundedLabel:
    """At most `limit` different values; later ones become `OVERFLOW`."""

    def __init__(self, limit: int = 1000) -> None:
        self._limit = limit
        self._known: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, value: str) -> str:
        if value in self._known:
            return value
        with self._lock:
            if len(self._known) >= self._limit:
                return OVERFLOW
            self._known.add(value)
            return value


def serve_metrics(bind: str, registry: CollectorRegistry) -> WSGIServer:
    """Serve `/metrics` on `bind` (host:port); `shutdown()` on the result stops it."""
    try:
        server, _thread = start_http_server(int(bind.rpartition(":")[2]), host_of(bind), registry)
    except OSError as error:
        raise SettingsError(f"cannot serve metrics on {bind}: {error.strerror}") from None
    return server
