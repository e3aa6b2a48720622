"""The exporter thread when collectors are slow, wrong or absent: every span is counted once."""

import threading
import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest
import structlog
from prometheus_client import CollectorRegistry, generate_latest

from sits_core import otlp, telemetry
from sits_core.otlp import SpanExporter
from sits_core.otlp_encoding import MAX_LINKS, encode, encode_resource
from sits_core.otlp_target import target
from sits_core.settings import Settings
from sits_core.testing import wait_until
from sits_core.tracing import SpanRecord, TraceContext, Tracer

ENDPOINT, PROTOCOL = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_PROTOCOL"
Serve = Callable[..., int]
SPAN = SpanRecord("executor.infer", b"t" * 16, b"s" * 8, b"p" * 8, 1, 2, {"rows": 8})


def record(tracer: Tracer, count: int) -> None:
    for number in range(count):
        tracer.record("executor.infer", tracer.new_trace(), number, number + 1, {"rows": number})


def exporter(**environ: str) -> SpanExporter:
    found = target(environ)
    assert found is not None
    return SpanExporter(found, {"service.name": "test"})


def test_exported_and_dropped_add_up_to_what_was_produced(
    collector: Any, serve_grpc: Serve
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
    collector: Any, serve_grpc: Serve, open_tracer: Callable[..., Tracer]
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


def test_spans_after_closing_are_counted_as_dropped(collector: Any, serve_grpc: Serve) -> None:
    closed = exporter(**{ENDPOINT: f"127.0.0.1:{serve_grpc()}"})
    closed.start()
    closed.offer(SPAN)
    closed.close(grace_s=30)
    closed.offer(SPAN)
    assert closed.counts() == {"exported": 1, "dropped": 1, "failed": 0, "queued": 0}
    assert collector.spans == 1


def test_few_spans_wait_until_they_are_a_batch(
    collector: Any, serve_grpc: Serve, monkeypatch: pytest.MonkeyPatch
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
    collector: Any, serve_grpc: Serve, monkeypatch: pytest.MonkeyPatch
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


def test_one_bad_span_costs_its_batch_and_not_the_thread(collector: Any, serve_grpc: Serve) -> None:
    robust = exporter(**{ENDPOINT: f"127.0.0.1:{serve_grpc()}"})
    robust.offer(SPAN._replace(start_ns=-1))
    robust.start()
    with structlog.testing.capture_logs() as lines:
        wait_until(lambda: robust.counts()["failed"] == 1)
        robust.offer(SPAN)
        wait_until(lambda: collector.spans == 1)
    robust.close()
    assert [line["event"] for line in lines] == ["otlp.export_failed"]


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize("fault", ["closed port", "deaf", "no such name", "refuses", "overloaded"])
def test_no_collector_fault_delays_start_requests_or_exit(
    fault: str,
    protocol: str,
    collector: Any,
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
