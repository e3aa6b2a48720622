"""The exporter thread against real collectors: good, wrong, slow and absent ones."""

import contextlib
import gzip
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import pytest
import structlog
import trustme
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from prometheus_client import CollectorRegistry, generate_latest

from sits_core import otlp, telemetry
from sits_core.otlp import SpanExporter
from sits_core.otlp_encoding import MAX_LINKS, encode, encode_resource
from sits_core.otlp_target import target
from sits_core.settings import Settings
from sits_core.testing import wait_until
from sits_core.tracing import NewId, SpanRecord, TraceContext, Tracer, span_below

ENDPOINT, PROTOCOL = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_PROTOCOL"
SPAN = SpanRecord("executor.infer", b"t" * 16, b"s" * 8, b"p" * 8, 1, 2, {"rows": 8})


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


def record(tracer: Tracer, count: int) -> None:
    for number in range(count):
        tracer.record("executor.infer", tracer.new_trace(), number, number + 1, {"rows": number})


def test_spans_for_later_arrive_made(
    collector: Collector, serve_grpc: Serve, open_tracer: Callable[..., Tracer]
) -> None:
    registry = CollectorRegistry()
    tracer = open_tracer({ENDPOINT: f"127.0.0.1:{serve_grpc()}"}, registry)
    parent = tracer.new_trace()

    def make(new_id: NewId) -> list[SpanRecord]:
        return [span_below(parent, new_id(), "executor.infer", n, n + 1, {}) for n in range(600)]

    tracer.record_later(600, make)
    record(tracer, 3)
    wait_until(lambda: collector.spans == 603)
    wait_until(
        lambda: registry.get_sample_value("sits_spans_total", {"outcome": "exported"}) == 603
    )
    assert registry.get_sample_value("sits_spans_queued") == 0


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "http://127.0.0.1:{}", "http://localhost:{}/"])
@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_spans_arrive_over_both_protocols(
    form: str,
    protocol: str,
    collector: Collector,
    serve_grpc: Serve,
    serve_http: Serve,
    open_tracer: Callable[..., Tracer],
) -> None:
    port = serve_grpc() if protocol == "grpc" else serve_http()
    record(open_tracer({ENDPOINT: form.format(port), PROTOCOL: protocol}), 700)
    wait_until(lambda: collector.spans == 700)


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_tls_with_a_private_ca_works(
    protocol: str,
    collector: Collector,
    serve_grpc: Serve,
    serve_http: Serve,
    open_tracer: Callable[..., Tracer],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    # The general variable of the HTTP library must not win over OpenTelemetry's.
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(other))
    ca, ca_file = trustme.CA(), tmp_path / "ca.pem"
    ca.cert_pem.write_to_path(str(ca_file))
    issued = ca.issue_cert("localhost")
    key, chain = issued.private_key_pem.bytes(), issued.cert_chain_pems[0].bytes()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    issued.configure_cert(context)
    if protocol == "grpc":
        port = serve_grpc(grpc.ssl_server_credentials([(key, chain)]))
    else:
        port = serve_http(context)
    environ = {
        ENDPOINT: f"https://localhost:{port}",
        PROTOCOL: protocol,
        "OTEL_EXPORTER_OTLP_CERTIFICATE": str(ca_file),
    }
    record(open_tracer(environ), 3)
    wait_until(lambda: collector.spans == 3)


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_headers_compression_and_resource_are_as_the_variables_say(
    protocol: str,
    collector: Collector,
    serve_grpc: Serve,
    serve_http: Serve,
    open_tracer: Callable[..., Tracer],
) -> None:
    environ = {
        ENDPOINT: f"127.0.0.1:{serve_grpc() if protocol == 'grpc' else serve_http()}",
        PROTOCOL: protocol,
        "OTEL_EXPORTER_OTLP_HEADERS": "x-key=secret",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_RESOURCE_ATTRIBUTES": "k8s.pod.name=executor-0,host.id=from-outside",
    }
    record(open_tracer(environ), 1)
    wait_until(lambda: collector.spans == 1)
    assert collector.headers["x-key"] == "secret"
    resource = collector.resource
    assert resource["service.name"] == "sits-executor"
    assert resource["service.instance.id"] == "executor-1"
    assert (resource["k8s.pod.name"], resource["host.id"]) == ("executor-0", "from-outside")


def test_a_service_name_of_the_standard_variable_wins(
    collector: Collector, serve_grpc: Serve, open_tracer: Callable[..., Tracer]
) -> None:
    environ = {ENDPOINT: f"127.0.0.1:{serve_grpc()}", "OTEL_SERVICE_NAME": "mine"}
    record(open_tracer(environ), 1)
    wait_until(lambda: collector.spans == 1)
    assert collector.resource["service.name"] == "mine"


def test_without_an_endpoint_there_is_no_exporter_thread(
    open_tracer: Callable[..., Tracer],
) -> None:
    tracer = open_tracer({})
    record(tracer, 1)
    assert len(tracer.spans()) == 1
    assert not [t for t in threading.enumerate() if t.name == "otlp export"]


def test_a_wrong_variable_is_told_once_and_the_service_goes_on(
    open_tracer: Callable[..., Tracer],
) -> None:
    with structlog.testing.capture_logs() as lines:
        tracer = open_tracer({ENDPOINT: "ftp://host:21"})
        record(tracer, 1)
    assert [line["event"] for line in lines] == ["otlp.disabled"]
    assert ENDPOINT in lines[0]["reason"]
    assert len(tracer.spans()) == 1


def exporter(**environ: str) -> SpanExporter:
    found = target(environ)
    assert found is not None
    return SpanExporter(found, {"service.name": "test"})


def test_exported_and_dropped_add_up_to_what_was_produced(
    collector: Collector, serve_grpc: Serve
) -> None:
    found = target({ENDPOINT: f"127.0.0.1:{serve_grpc()}"})
    assert found is not None
    collector.release.clear()
    small = SpanExporter(found, {}, queue_spans=100)
    small.start()
    producers = [
        threading.Thread(target=lambda: [small.offer(SPAN) for _ in range(1000)]) for _ in range(4)
    ]
    for producer in producers:
        producer.start()
    for producer in producers:
        producer.join()
    assert sum(small.counts().values()) == 4000
    assert small.counts()["queued"] <= 100 + otlp.BATCH_SPANS
    collector.release.set()
    small.close(grace_s=30)
    counts = small.counts()
    assert counts["dropped"] > 0
    assert (counts["exported"], counts["queued"], counts["failed"]) == (collector.spans, 0, 0)
    assert counts["exported"] + counts["dropped"] == 4000


def test_outcomes_are_metrics(
    collector: Collector, serve_grpc: Serve, open_tracer: Callable[..., Tracer]
) -> None:
    registry = CollectorRegistry()
    tracer = open_tracer({ENDPOINT: f"127.0.0.1:{serve_grpc()}"}, registry)
    record(tracer, 5)
    line = b'sits_spans_total{outcome="exported"} 5.0'
    wait_until(lambda: line in generate_latest(registry))
    shown = generate_latest(registry)
    assert b'sits_spans_total{outcome="dropped"} 0.0' in shown
    assert b'sits_spans_total{outcome="failed"} 0.0' in shown
    assert b"sits_spans_queued 0.0" in shown


def test_spans_after_closing_are_counted_as_dropped(
    collector: Collector, serve_grpc: Serve
) -> None:
    closed = exporter(**{ENDPOINT: f"127.0.0.1:{serve_grpc()}"})
    closed.start()
    closed.offer(SPAN)
    closed.close(grace_s=30)
    closed.offer(SPAN)
    assert closed.counts() == {"exported": 1, "dropped": 1, "failed": 0, "queued": 0}
    assert collector.spans == 1


def test_few_spans_wait_until_they_are_a_batch(
    collector: Collector, serve_grpc: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "LINGER_S", 3600.0)
    waiting = exporter(**{ENDPOINT: f"127.0.0.1:{serve_grpc()}"})
    waiting.start()
    for _ in range(otlp.BATCH_SPANS):
        waiting.offer(SPAN)
    wait_until(lambda: collector.spans == otlp.BATCH_SPANS)
    waiting.close(grace_s=30)
    assert len(collector.requests) == 1


def test_few_spans_do_not_wait_for_ever(
    collector: Collector, serve_grpc: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "LINGER_S", 0.0)
    waiting = exporter(**{ENDPOINT: f"127.0.0.1:{serve_grpc()}"})
    waiting.start()
    waiting.offer(SPAN)
    wait_until(lambda: collector.spans == 1)
    waiting.close()


def test_the_largest_batch_is_less_than_what_collectors_accept_by_default() -> None:
    origins = (TraceContext(b"o" * 16, b"q" * 8),) * MAX_LINKS
    placed = SPAN._replace(links=origins)
    largest = [placed, SPAN] * (otlp.BATCH_SPANS // 2)
    assert len(encode(largest, encode_resource({}))) < 4 << 20


def test_an_exporter_that_never_started_closes(serve_grpc: Serve) -> None:
    never = exporter(**{ENDPOINT: f"127.0.0.1:{serve_grpc()}"})
    never.offer(SPAN)
    never.close()
    assert never.counts()["dropped"] == 1


def test_one_bad_span_costs_its_batch_and_not_the_thread(
    collector: Collector, serve_grpc: Serve
) -> None:
    robust = exporter(**{ENDPOINT: f"127.0.0.1:{serve_grpc()}"})
    robust.offer(SPAN._replace(start_ns=-1))
    robust.start()
    with structlog.testing.capture_logs() as lines:
        wait_until(lambda: robust.counts()["failed"] == 1)
        robust.offer(SPAN)
        wait_until(lambda: collector.spans == 1)
    robust.close()
    assert [line["event"] for line in lines] == ["otlp.export_failed"]


@pytest.fixture
def deaf_port() -> Iterator[int]:
    """Accepts connections and never says a word."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(16)
        yield deaf.getsockname()[1]


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize("fault", ["closed port", "deaf", "no such name", "refuses", "overloaded"])
def test_no_collector_fault_delays_start_requests_or_exit(
    fault: str,
    protocol: str,
    collector: Collector,
    serve_grpc: Serve,
    serve_http: Serve,
    deaf_port: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good = serve_grpc() if protocol == "grpc" else serve_http()
    collector.refusal = (grpc.StatusCode.UNAVAILABLE, 503)
    if fault == "overloaded":
        collector.refusal = (grpc.StatusCode.RESOURCE_EXHAUSTED, 429)
    endpoint = {
        "closed port": "127.0.0.1:1",
        "deaf": f"127.0.0.1:{deaf_port}",
        "no such name": "collector.invalid:4317",
    }.get(fault, f"127.0.0.1:{good}")
    monkeypatch.setenv(ENDPOINT, endpoint)
    monkeypatch.setenv(PROTOCOL, protocol)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
    registry = CollectorRegistry()
    outcomes = registry.get_sample_value
    began = time.monotonic()
    with (
        structlog.testing.capture_logs() as lines,
        telemetry.open_tracer("test", Settings(trace_ratio=1), registry, "test-1") as tracer,
    ):
        record(tracer, otlp.QUEUE_SPANS * 2)
        wait_until(lambda: (outcomes("sits_spans_queued") or 0) >= otlp.QUEUE_SPANS)
    # The SDK by itself would try for a minute.
    assert time.monotonic() - began < 30
    warnings = [line for line in lines if line["log_level"] == "warning"]
    assert len(warnings) <= 1
    ended = [outcomes("sits_spans_total", {"outcome": o}) for o in ("dropped", "failed")]
    assert sum(count or 0 for count in ended) == otlp.QUEUE_SPANS * 2
    assert outcomes("sits_spans_total", {"outcome": "exported"}) == 0


def test_grpc_pointed_to_an_http_port_says_so_once(
    serve_http: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    wrong = exporter(**{ENDPOINT: f"127.0.0.1:{serve_http()}", PROTOCOL: "grpc"})
    wrong.start()
    with structlog.testing.capture_logs() as lines:
        for _ in range(2):
            before = wrong.counts()["failed"]
            wrong.offer(SPAN)
            wait_until(lambda: wrong.counts()["failed"] > before)  # noqa: B023 - waited for here
    wrong.close()
    (line,) = lines
    assert line["event"] == "otlp.export_failed"
    assert "HTTP/2" in line["reason"]


SCRIPT = """
import multiprocessing, os, sys
from prometheus_client import CollectorRegistry
from sits_core.settings import Settings
from sits_core.telemetry import open_tracer
from sits_core.testing import wait_until

def work(name):
    registry = CollectorRegistry()
    with open_tracer("executor", Settings(), registry, name) as tracer:
        tracer.record("executor.infer", tracer.new_trace(), 1, 2, {})
        # The end of a process waits a second at most, which a busy machine needs to begin with.
        exported = {"outcome": "exported"}
        wait_until(lambda: registry.get_sample_value("sits_spans_total", exported), 30, "sent")

def fork(tracer):
    for _ in range(5):
        child = os.fork()
        if child == 0:
            for _ in range(10):
                tracer.record("in.child", tracer.new_trace(), 1, 2, {})
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0, status

if __name__ == "__main__":
    with open_tracer("executor", Settings(), CollectorRegistry(), "parent") as tracer:
        tracer.record("executor.infer", tracer.new_trace(), 1, 2, {})
        if sys.argv[1] == "fork":
            fork(tracer)
        elif sys.argv[1] == "spawn":
            spawn = multiprocessing.get_context("spawn")
            workers = [spawn.Process(target=work, args=(f"worker-{n}",)) for n in range(2)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
"""


def run_script(tmp_path: Path, method: str, port: int, **variables: str) -> str:
    script = tmp_path / "workers.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), method],
        env={**os.environ, ENDPOINT: f"127.0.0.1:{port}", **variables},
        capture_output=True,
        text=True,
        timeout=45,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def instances(collector: Collector) -> set[str]:
    return {
        item.value.string_value
        for request in collector.requests
        for item in request.resource_spans[0].resource.attributes
        if item.key == "service.instance.id"
    }


def test_a_forked_child_does_not_hang_and_says_that_its_spans_are_dropped(
    collector: Collector, serve_grpc: Serve, tmp_path: Path
) -> None:
    said = run_script(tmp_path, "fork", serve_grpc())
    assert said.count(otlp.FORK_WARNING.decode()) == 5
    assert (collector.spans, instances(collector)) == (1, {"parent"})


def test_spans_come_from_every_spawned_worker(
    collector: Collector, serve_grpc: Serve, tmp_path: Path
) -> None:
    assert otlp.FORK_WARNING.decode() not in run_script(tmp_path, "spawn", serve_grpc())
    assert instances(collector) == {"parent", "worker-0", "worker-1"}


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_process_ends_while_its_collector_does_not_answer(
    protocol: str, deaf_port: int, tmp_path: Path
) -> None:
    long = {"OTEL_EXPORTER_OTLP_TIMEOUT": "300", PROTOCOL: protocol}
    run_script(tmp_path, "exit", deaf_port, **long)


def test_a_parent_context_joins_the_exported_span(
    collector: Collector, serve_grpc: Serve, open_tracer: Callable[..., Tracer]
) -> None:
    tracer = open_tracer({ENDPOINT: f"127.0.0.1:{serve_grpc()}"})
    parent = TraceContext(b"t" * 16, b"p" * 8)
    tracer.record("child", parent, 1, 2, {})
    wait_until(lambda: collector.spans == 1)
    span = collector.requests[0].resource_spans[0].scope_spans[0].spans[0]
    assert (span.trace_id, span.parent_span_id) == parent
