"""Collectors for the exporter: over gRPC and over HTTP, with TLS, deaf, and refusing as told."""

import contextlib
import gzip
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from prometheus_client import CollectorRegistry

from sits_core import telemetry
from sits_core.settings import Settings
from sits_core.tracing import Tracer


@pytest.fixture(autouse=True)
def no_otel_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


class Collector(TraceServiceServicer):
    """Takes spans over gRPC and over HTTP, or refuses them as told."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.headers: dict[str, str] = {}
        self.refusal: tuple[grpc.StatusCode, int] | None = None
        self.release = threading.Event()
        self.release.set()

    @property
    def spans(self) -> int:
        return sum(
            len(scope.spans)
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
        )

    @property
    def resource(self) -> dict[str, str]:
        attributes = self.requests[0].resource_spans[0].resource.attributes
        return {item.key: item.value.string_value for item in attributes}

    def Export(
        self, request: ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> ExportTraceServiceResponse:
        self.headers = {key: str(value) for key, value in context.invocation_metadata()}
        self.release.wait(60)
        if self.refusal is not None:
            context.abort(self.refusal[0], "no")
        self.requests.append(request)
        return ExportTraceServiceResponse()

    def post(self, handler: BaseHTTPRequestHandler) -> None:
        self.headers = dict(handler.headers)
        body = handler.rfile.read(int(handler.headers["content-length"]))
        if handler.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.release.wait(60)
        refused = self.refusal is not None or handler.path != "/v1/traces"
        if not refused:
            self.requests.append(ExportTraceServiceRequest.FromString(body))
        handler.send_response(self.refusal[1] if self.refusal else 404 if refused else 200)
        handler.send_header("content-length", "0")
        handler.end_headers()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.release.set()


Serve = Callable[..., int]


@pytest.fixture
def serve_grpc(collector: Collector) -> Iterator[Serve]:
    with contextlib.ExitStack() as servers:

        def serve(credentials: grpc.ServerCredentials | None = None) -> int:
            server = grpc.server(futures.ThreadPoolExecutor(4))
            add_TraceServiceServicer_to_server(collector, server)
            if credentials is None:
                port = server.add_insecure_port("127.0.0.1:0")
            else:
                port = server.add_secure_port("127.0.0.1:0", credentials)
            server.start()
            servers.callback(lambda: server.stop(0).wait(5))
            return port

        yield serve
        collector.release.set()


@pytest.fixture
def serve_http(collector: Collector) -> Iterator[Serve]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            with contextlib.suppress(OSError):
                collector.post(self)

        def log_message(self, *args: object) -> None:
            """Quiet."""

    with contextlib.ExitStack() as servers:

        def serve(tls: ssl.SSLContext | None = None) -> int:
            server = servers.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
            server.daemon_threads, server.block_on_close = True, False
            if tls is not None:
                server.socket = tls.wrap_socket(server.socket, server_side=True)
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
            servers.callback(server.shutdown)
            return server.server_port

        yield serve
        collector.release.set()


@pytest.fixture
def open_tracer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Tracer]]:
    """A tracer with an exporter, under the OTEL_ variables given; closed by the test's end."""
    with contextlib.ExitStack() as tracers:

        def make(environ: dict[str, str], registry: CollectorRegistry | None = None) -> Tracer:
            for name, value in environ.items():
                monkeypatch.setenv(name, value)
            opened = telemetry.open_tracer(
                "executor", Settings(trace_ratio=1), registry or CollectorRegistry(), "executor-1"
            )
            return tracers.enter_context(opened)

        yield make


@pytest.fixture
def deaf_port() -> Iterator[int]:
    """Accepts connections and never says a word."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(16)
        yield deaf.getsockname()[1]
