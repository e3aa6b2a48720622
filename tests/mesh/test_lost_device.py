"""A device that fails for good, under load, with real processes (EXE-06): on the CPU by a model
that says that it has; `bench/gpu/faults.py` does the same to a GPU."""

from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton

from sits_cli.mesh import Mesh
from sits_cli.testing_load import Load
from sits_cli.testing_mesh import (
    plan,
    serves,
    state_of,
    status_of,
    tensor,
    whole,
    write_model,
)
from sits_core.testing import wait_until
from sits_protos.v1.link_pb2 import Role

pytestmark = pytest.mark.mesh

START_S = 60


@pytest.fixture
def models(tmp_path: Path) -> Path:
    root = tmp_path / "models"
    write_model(root, "brief", "sleep", sleep_ms=2)
    write_model(root, "fragile", "lose_device", value=666)
    return root


def linked(mesh: Mesh) -> bool:
    """Both executors, with the dispatcher."""
    peers = [p for p in state_of(mesh).peers if p.connected]
    return sum(peer.hello.role == Role.ROLE_EXECUTOR for peer in peers) == 2


def restarts(mesh: Mesh) -> int:
    return sum(state.restarts for state in mesh.states() if state.name.startswith("executor"))


def test_only_what_ran_on_a_lost_device_fails_and_its_executor_starts_again(
    models: Path, tmp_path: Path
) -> None:
    with Mesh(plan(models, tmp_path / "logs")) as mesh:
        wait_until(lambda: serves(mesh, "fragile"), START_S, "the models")
        wait_until(lambda: whole(mesh) and linked(mesh), START_S, "both executors")
        with Load(mesh.addresses.front) as load:
            load.wait_for_more()
            with triton.InferenceServerClient(mesh.addresses.front) as client:
                bad = [tensor(np.full((1, 3), 666, np.float32))]
                status, text = status_of(lambda: client.infer("fragile", bad))
                assert (status, "the device failed" in text) == ("INTERNAL", True)
            wait_until(lambda: restarts(mesh) == 1, START_S, "the supervisor starts it again")
            wait_until(lambda: whole(mesh) and linked(mesh), START_S, "both executors again")
            load.wait_for_more()
        assert load.all_right, load
