"""What tracing costs: one mesh, the share of traced requests changed while it runs."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

import tritonclient.grpc as triton

from sits_bench import checks, copies, repositories
from sits_bench.bars import at_least_times
from sits_bench.compare import Found, Plan, per_s, request_file, steady
from sits_bench.group import Bench
from sits_bench.groups.front import KILOBYTE
from sits_bench.mesh_system import MeshSystem
from sits_bench.system import Running, until
from sits_sim.figures import Figure, plain

ROUNDS: Final = 2
"""Times those of the plan: 3 % is less than what one run differs from the next."""
START_S: Final = 8.0
SHARES: Final = {"off": None, "1 %": 100, "100 %": 1}
"""Label → one of how many requests is traced; None = none is."""
DRAIN_S: Final = 30.0
LEAST: Final = {"1 %": 0.97, "100 %": 0.85}


class Collector(ThreadingHTTPServer):
    """Takes OTLP over HTTP and counts the bytes: spans must really be built and sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taken)
        self.received_bytes = 0


class _Taken(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Collector

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self.rfile.read(length)
        self.server.received_bytes += length
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the parent's name
        """Nobody reads it."""


@contextmanager
def collecting() -> Iterator[Collector]:
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever, daemon=True)
        thread.start()
        yield collector
        collector.shutdown()


@dataclass(frozen=True, slots=True)
class Tracing:
    name: str = "tracing"

    def seconds(self, plan: Plan) -> float:
        each_s = plan.warm_up_s + plan.duration_s
        return START_S + ROUNDS * plan.rounds * len(SHARES) * each_s

    def run(self, bench: Bench) -> list[Figure]:
        with collecting() as collector:
            found = _measure(bench, f"http://127.0.0.1:{collector.server_port}")
            bench.keep(self.name, found)
            return [*_figures(found), _exported(collector)]


def _measure(bench: Bench, endpoint: str) -> Found:
    found, plan = Found(), bench.plan
    load = plan.closed(request_file("1-kb", [KILOBYTE]), 64)
    labels = list(SHARES)
    with _system(endpoint).start() as running:
        checks.echoes(running, KILOBYTE)
        bench.progress.step("tracing: started", START_S)
        for number in range(ROUNDS * plan.rounds):
            first = number % len(labels)
            for label in (*labels[first:], *labels[:first]):
                _trace(running, SHARES[label])
                until(lambda: _sent(running), DRAIN_S, "end of the export")
                found.add("mesh", label, steady(running, load))
                bench.progress.step(f"tracing: {label}", load.seconds)
    return found


def _system(endpoint: str) -> MeshSystem:
    env = {
        "SITS_TRACE_RATIO": "0",
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    }
    return MeshSystem("mesh, tracing", [repositories.echo()], env)


def _trace(running: Running, one_of: int | None) -> None:
    """Through the protocol's own trace settings."""
    settings = (
        {"trace_level": ["OFF"]}
        if one_of is None
        else {"trace_level": ["TIMESTAMPS"], "trace_rate": [str(one_of)]}
    )
    with triton.InferenceServerClient(running.target) as client:
        client.update_trace_settings(settings=settings)


def _sent(running: Running) -> bool:
    """Whether all spans are gone: those of the run before must not count for the next."""
    return not copies.counters(running.metrics, "sits_spans_queued")


def _figures(found: Found) -> list[Figure]:
    off = found.median("mesh", "off", per_s)
    return [
        at_least_times(
            f"tracing.{label.removesuffix(' %')}: throughput with {label} traced, against none",
            found.median("mesh", label, per_s), "req/s", off, least,
        )
        for label, least in LEAST.items()
    ]  # fmt: skip


def _exported(collector: Collector) -> Figure:
    return plain("tracing.exported: what the collector received", collector.received_bytes, "B")


TRACING: Final = Tracing()
