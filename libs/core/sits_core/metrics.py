"""Prometheus metrics: one registry a process, label values and series bounded."""

import socket
import ssl
import sys
import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from socketserver import TCPServer
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    Metric,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    make_wsgi_app,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from sits_core.settings import SettingsError, host_of
from sits_core.tls import ServerTls

OVERFLOW = "other"
"""Label value shared by all names beyond the limit, and by unknown ones."""

MAX_SERIES = 10_000
"""Series a process shows; more would hurt whoever stores them."""


class BoundedLabel:
    """At most `limit` different values; later ones become `OVERFLOW`.

    200 models in a histogram of 15 buckets are 3,400 series of the 10,000 a process has.
    """

    def __init__(self, limit: int = 200) -> None:
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


class PlainHistogram(Collector):
    """A histogram without labels, counted in plain numbers: the client library's takes a lock and
    a dozen calls for each value. Callers see to it that one thread at a time observes."""

    def __init__(
        self, name: str, text: str, buckets: Sequence[float], registry: CollectorRegistry
    ) -> None:
        self._name, self._text, self._bounds = name, text, list(buckets)
        self._counts, self._sum = [0] * (len(buckets) + 1), 0.0
        registry.register(self)

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterator[Metric]:
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        buckets = list(zip(names, map(float, accumulate(self._counts)), strict=True))
        family = HistogramMetricFamily(self._name, self._text)
        family.add_metric([], buckets, self._sum)
        return iter((family,))


class PayloadCopies(Collector):
    """How often this process copied payloads, by stage: in bytes, and in copies of whole
    requests, of which one copied twice counts two. Safe from any thread.

    Not seen: what gRPC and the kernel do inside. A write into a pool's slot is where a
    payload comes to lie and no copy; stages say what they count.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._stages: dict[str, list[float]] = {}
        self._lock = threading.Lock()
        registry.register(self)

    def count(self, stage: str, copied_bytes: int, payload_bytes: int, requests: int) -> None:
        """Requests with so many bytes of payload in all, of which so many were copied."""
        copies = requests * copied_bytes / payload_bytes if payload_bytes else 0.0
        with self._lock:
            counts = self._stages.get(stage)
            if counts is None:
                counts = self._stages[stage] = [0, 0.0]
            counts[0] += copied_bytes
            counts[1] += copies

    def collect(self) -> Iterator[Metric]:
        size = CounterMetricFamily("sits_copied_bytes", "Payload bytes copied", labels=["stage"])
        copies = CounterMetricFamily(
            "sits_payload_copies", "Times that payloads of requests were copied", labels=["stage"]
        )
        with self._lock:
            for stage, (copied_bytes, count) in self._stages.items():
                size.add_metric([stage], copied_bytes)
                copies.add_metric([stage], count)
        return iter((size, copies))


class ProcessRegistry(CollectorRegistry):
    """The registry of one process: its own metrics, and those of the interpreter.

    Shows at most `max_series`: bounded labels should keep it far below, and what they
    multiply to is cut here, largest metric first, and counted in `sits_series_hidden`.
    """

    def __init__(self, max_series: int = MAX_SERIES) -> None:
        super().__init__()
        # When each series began: as many again, and no query of ours asks for it.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._max_series = max_series
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self)

    def collect(self) -> Iterator[Metric]:
        metrics = list(super().collect())
        room = fair_shares([len(metric.samples) for metric in metrics], self._max_series - 1)
        hidden = 0
        for metric, share in zip(metrics, room, strict=True):
            hidden += len(metric.samples) - share
            metric.samples = metric.samples[:share]
            yield metric
        text = "Series left out because the process has too many"
        yield GaugeMetricFamily("sits_series_hidden", text, value=hidden)


def fair_shares(wanted: list[int], total: int) -> list[int]:
    """How much of `total` each gets: small wishes in full, the rest in equal parts."""
    shares = [0] * len(wanted)
    smallest_first = sorted(range(len(wanted)), key=wanted.__getitem__)
    for position, index in enumerate(smallest_first):
        shares[index] = min(wanted[index], total // (len(wanted) - position))
        total -= shares[index]
    return shares


def serve_metrics(
    bind: str, registry: CollectorRegistry, tls: ServerTls | None = None
) -> WSGIServer:
    """Serve `/metrics` on `bind` (host:port); `shutdown()` on the result stops it."""
    context = tls.context() if tls is not None else None
    host, port = host_of(bind), bind.rpartition(":")[2]
    server_class = _Server6 if ":" in host else _Server
    try:
        server = server_class((host, int(port)), _QuietHandler)
    except (OSError, ValueError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or "expected host:port"
        raise SettingsError(f"cannot serve metrics on {bind}: {reason}") from None
    server.tls = context
    server.set_app(make_wsgi_app(registry))
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server


class _Server(ThreadingWSGIServer):
    tls: ssl.SSLContext | None = None

    def get_request(self) -> tuple[socket.socket, object]:
        connection, peer = super().get_request()
        if self.tls is not None:
            # The handshake happens with the first read, on the connection's own thread.
            connection = self.tls.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        return connection, peer

    def handle_error(self, request: object, client_address: object) -> None:
        """A scraper that left, or one without the right certificate, is no traceback."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]  # the parent's business

    def server_bind(self) -> None:
        # The parent's looks its own name up in the DNS, which may take seconds.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]  # typeshed allows bytes here
        self.setup_environ()

    def shutdown(self) -> None:
        super().shutdown()
        self.server_close()


class _Server6(_Server):
    address_family = socket.AF_INET6


class _QuietHandler(WSGIRequestHandler):
    timeout = 10  # seconds a scraper may stay silent

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parent's name
        """A scrape is no news."""
