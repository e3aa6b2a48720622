"""Real meshes of processes, with models of the builtin backend, shared by as many tests as can."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.grpc as triton

from sits_cli.mesh import Mesh
from sits_cli.testing_mesh import plan, running, write_model
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
def mesh(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """Two executors, and Redis; children that die come back."""
    with running(plan(models, tmp_path_factory.mktemp("logs")), LAST) as made:
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
    debug lines, every request traced, clients' shared memory. No collector takes the spans:
    they are deaf, absent, or have no address."""
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
            "preprocess": {"SITS_PREPROCESS_ALLOW_CLIENT_SHM": "true"},
            "dispatcher": {endpoint: f"http://127.0.0.1:{free_port()}"},
            "topology": {endpoint: "http://collector.invalid:4317"},
        },
    )
    with running(own, LAST) as made:
        yield made
