"""Real meshes of processes, with models of the builtin backend, shared by as many tests as can."""

import socket
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from sits_cli.mesh import Mesh
from sits_cli.testing_mesh import plan, running, tensor, write_model
from sits_core.testing import free_port

DATATYPES = (
    "BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64",
    "FP16", "FP32", "FP64", "BF16", "BYTES",
)  # fmt: skip
LAST = "very_slow"
"""The model that is the last to be ready."""


def write_models(root: Path) -> None:
    for datatype in DATATYPES:
        write_model(root, f"identity_{datatype.lower()}", "identity", datatype)
    write_model(root, "literal_bytes", "identity", "BYTES", "[ -1 ]", 0)
    write_model(root, "literal_column", "identity", "BYTES", "[ -1, 1 ]", 0)
    write_model(root, "pair", "identity", pairs={"P": "A", "Q": "B"})
    write_model(root, "image", "identity", dims="[ 3, 640, 640 ]")
    write_model(root, "slow", "sleep", sleep_ms=200)
    write_model(root, "patient", "sleep", max_batch=0, sleep_ms_per_row=500)
    write_model(root, "brief", "sleep", sleep_ms=2)
    write_model(root, "perf", "sleep", dims="[ 16 ]", sleep_ms=1)
    write_model(root, "sums", "row_sum")
    write_model(root, "picky", "fail_on", value=666)
    write_model(root, "verbose", "fail_on", value=666, message_bytes=40_000,
                message=r"100% wrong: žluť 🐎\nTraceback /etc/secret ")  # fmt: skip
    write_model(root, "eight", "sleep", sleep_ms=200)
    write_model(root, "window", "sleep", more=delay(300_000), sleep_ms=20)
    write_model(root, "two_s", "sleep", max_batch=400, more=delay(2_000_000), sleep_ms=20)
    write_model(root, "ten_s", "sleep", more=delay(10_000_000), sleep_ms=20)
    write_model(root, "echo", "echo_parameter", "FP32", out_datatype="BYTES",
                pairs={"P": "A", "Q": "B"}, more=delay(300_000))  # fmt: skip
    write_model(root, LAST, "sleep", sleep_ms=1000, max_batch=1)


def delay(microseconds: int) -> str:
    return f"dynamic_batching {{ max_queue_delay_microseconds: {microseconds} }}"


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_models(root)
    return root


@pytest.fixture(scope="session")
def few_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For meshes that live for one test: they are ready sooner."""
    root = tmp_path_factory.mktemp("few models")
    for datatype in ("FP32", "UINT8"):
        write_model(root, f"identity_{datatype.lower()}", "identity", datatype)
    write_model(root, "brief", "sleep", sleep_ms=2)
    write_model(root, "sums", "row_sum")
    return root


class Collector(TraceServiceServicer):
    """Keeps all spans that it is sent, by the process that sent them."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.spans: dict[int, list[Span]] = defaultdict(list)

    def Export(
        self, request: ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> ExportTraceServiceResponse:
        for resource in request.resource_spans:
            attributes = {a.key: a.value for a in resource.resource.attributes}
            spans = [span for scope in resource.scope_spans for span in scope.spans]
            self.spans[attributes["process.pid"].int_value] += spans
        return ExportTraceServiceResponse()


@pytest.fixture(scope="session")
def collector() -> Iterator[Collector]:
    made, server = Collector(), grpc.server(ThreadPoolExecutor(8))
    add_TraceServiceServicer_to_server(made, server)
    made.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield made
    server.stop(0).wait(5)


@pytest.fixture(scope="session")
def mesh(
    models: Path, collector: Collector, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mesh]:
    """Two executors, and Redis; children that die come back."""
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint}
    with running(plan(models, tmp_path_factory.mktemp("logs"), env=env), LAST) as made:
        yield made


@pytest.fixture
def client(mesh: Mesh) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(mesh.addresses.front) as made:
        yield made


@pytest.fixture(scope="session")
def deaf_port() -> Iterator[int]:
    """Connections are taken, and nothing ever comes back."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        yield listening.getsockname()[1]


@pytest.fixture(scope="session")
def solo(models: Path, deaf_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """One executor, so that what one instance does can be told; all that may be switched on:
    debug lines, every request traced, clients' shared memory; and the other transport than
    the default one. No collector takes the spans:
    they are deaf, absent, or have no address. Admission is off: it would refuse what has to
    run out of time in a queue here."""
    endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT"
    everywhere = {
        "SITS_LOG_LEVEL": "debug",
        "SITS_TRACE_RATIO": "1",
        endpoint: f"http://127.0.0.1:{deaf_port}",
    }
    own = plan(
        models,
        tmp_path_factory.mktemp("solo"),
        executors=1,
        env=everywhere,
        service_env={
            "preprocess": {
                "SITS_PREPROCESS_ALLOW_CLIENT_SHM": "true",
                "SITS_PREPROCESS_ADMISSION": "false",
            },
            "dispatcher": {endpoint: f"http://127.0.0.1:{free_port()}"},
            "topology": {endpoint: "http://collector.invalid:4317"},
        },
    )
    with running(own, LAST) as made:
        yield made


class Patient:
    """Stock clients that ping every ten seconds: one idle, one with an idle stream, one that
    waits for a long request."""

    PATIENCE_S = 42.0
    PINGS = triton.KeepAliveOptions(
        keepalive_time_ms=10_000,
        keepalive_timeout_ms=5_000,
        keepalive_permit_without_calls=True,
        http2_max_pings_without_data=0,
    )

    def __init__(self, address: str) -> None:
        self.idle, self.streaming, self.waiting = (
            triton.InferenceServerClient(address, keepalive_options=self.PINGS) for _ in range(3)
        )
        self.streamed: Queue[tuple[triton.InferResult | None, object]] = Queue()
        self.waited: Queue[tuple[triton.InferResult | None, object]] = Queue()

    def start(self) -> None:
        self.idle.is_server_live()
        self.streaming.start_stream(lambda result, error: self.streamed.put((result, error)))
        rows = int(self.PATIENCE_S / 0.5)  # the model sleeps half a second a row
        self.waiting.async_infer(
            "patient",
            [tensor(np.zeros(rows, np.float32))],
            lambda result, error: self.waited.put((result, error)),
        )

    def close(self) -> None:
        for client in (self.idle, self.streaming, self.waiting):
            client.close()


@pytest.fixture(scope="session")
def patient(mesh: Mesh) -> Iterator[Patient]:
    """They wait while other tests run: one batch of theirs is in flight for a while."""
    made = Patient(mesh.addresses.front)
    made.start()
    yield made
    made.close()
