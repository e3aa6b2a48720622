"""Real meshes of processes, with models of the builtin backend, shared by as many tests as can."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.grpc as triton

from sits_cli.mesh import Mesh
from sits_cli.testing_mesh import plan, running, write_model

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
    write_model(root, LAST, "sleep", sleep_ms=1000, max_batch=1)


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
