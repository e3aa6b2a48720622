"""Spans arrive at real collectors over both protocols, as the variables say."""

import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
import trustme
from prometheus_client import CollectorRegistry

from sits_core.testing import wait_until
from sits_core.tracing import NewId, SpanRecord, TraceContext, Tracer, span_below

ENDPOINT, PROTOCOL = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_PROTOCOL"
Serve = Callable[..., int]


def record(tracer: Tracer, count: int) -> None:
    for number in range(count):
        tracer.record("executor.infer", tracer.new_trace(), number, number + 1, {"rows": number})


def test_spans_for_later_arrive_made(
    collector: Any, serve_grpc: Serve, open_tracer: Callable[..., Tracer]
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
    collector: Any,
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
    collector: Any,
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
    collector: Any,
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
    collector: Any, serve_grpc: Serve, open_tracer: Callable[..., Tracer]
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


def test_a_parent_context_joins_the_exported_span(
    collector: Any, serve_grpc: Serve, open_tracer: Callable[..., Tracer]
) -> None:
    tracer = open_tracer({ENDPOINT: f"127.0.0.1:{serve_grpc()}"})
    parent = TraceContext(b"t" * 16, b"p" * 8)
    tracer.record("child", parent, 1, 2, {})
    wait_until(lambda: collector.spans == 1)
    span = collector.requests[0].resource_spans[0].scope_spans[0].spans[0]
    assert (span.trace_id, span.parent_span_id) == parent
