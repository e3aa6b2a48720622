"""A real mesh of processes with models of the builtin backend, shared by a module's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.grpc as triton

from sits_cli import ports
from sits_cli.mesh import Mesh, Plan
from sits_core.testing import wait_until

DATATYPES = (
    "BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64",
    "FP16", "FP32", "FP64", "BF16", "BYTES",
)  # fmt: skip

READY_S = 60


def write_model(
    root: Path,
    name: str,
    function: str,
    datatype: str = "FP32",
    dims: str = "[ -1 ]",
    max_batch: int = 8,
    more: str = "",
    **parameters: object,
) -> None:
    """A model of the builtin backend: inputs and outputs X and Y of `datatype`."""
    kind = "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
    values = "".join(
        f'parameters {{ key: "{k}" value: {{ string_value: "{v}" }} }}\n'
        for k, v in {"function": function, **parameters}.items()
    )
    tensor = f"data_type: {kind} dims: {dims}"
    folder = root / name / "1"
    folder.mkdir(parents=True)
    (folder.parent / "config.pbtxt").write_text(
        f'name: "{name}"\nbackend: "builtin"\nmax_batch_size: {max_batch}\n'
        f'input {{ name: "X" {tensor} }}\noutput {{ name: "Y" {tensor} }}\n{values}{more}'
    )


def write_models(root: Path) -> None:
    for datatype in DATATYPES:
        write_model(root, f"identity_{datatype.lower()}", "identity", datatype)
    write_model(root, "slow", "sleep", sleep_ms=200)
    write_model(root, "very_slow", "sleep", sleep_ms=2000, max_batch=1)
    write_model(root, "brief", "sleep", sleep_ms=2)
    write_model(root, "sums", "row_sum")
    write_model(root, "picky", "fail_on", value=666)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_models(root)
    return root


@pytest.fixture(scope="module")
def mesh(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """Two executors, and Redis; children that die come back."""
    plan = Plan(
        ports.free(executors=2),
        models=models,
        log_dir=tmp_path_factory.mktemp("logs"),
        env={"SITS_TRACE_RATIO": "0", "SITS_LOG_LEVEL": "info"},
    )
    with Mesh(plan) as running:
        running.wait_ready(READY_S)
        wait_until(lambda: serving(running), READY_S, "models on both executors")
        yield running


def serving(mesh: Mesh) -> bool:
    """Whether the front door knows the models."""
    with triton.InferenceServerClient(mesh.addresses.front) as client:
        return bool(client.is_model_ready("slow"))


@pytest.fixture
def client(mesh: Mesh) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(mesh.addresses.front) as made:
        yield made
