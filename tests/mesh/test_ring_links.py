"""Services of one host talk through rings in shared memory, and over gRPC when told to."""

import os
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton

from sits_channel import ring
from sits_cli.mesh import Mesh
from sits_cli.testing_mesh import plan, running, state_of, tensor
from sits_protos.v1.link_pb2 import ROLE_TOPOLOGY

pytestmark = pytest.mark.mesh

MODEL = "identity_fp32"
TIMEOUT_S = 20


def ways(mesh: Mesh) -> set[str]:
    """How messages travel on the dispatcher's links."""
    return {peer.transport for peer in state_of(mesh).peers if peer.hello.role != ROLE_TOPOLOGY}


def infer(mesh: Mesh) -> None:
    data = np.random.default_rng(1).random((4, 5_000), np.float32)
    with triton.InferenceServerClient(mesh.addresses.front) as client:
        answer = client.infer(MODEL, [tensor(data)], client_timeout=TIMEOUT_S)
    assert np.array_equal(answer.as_numpy("Y"), data)


@pytest.mark.skipif(not ring.available(), reason="the C core is not compiled")
def test_on_one_host_all_links_are_rings_and_their_files_are_gone(mesh: Mesh) -> None:
    infer(mesh)
    assert ways(mesh) == {"ring+shm"}
    prefix = f"sits-{mesh.plan.env['SITS_REDIS_PREFIX']}-"
    shared = os.listdir("/dev/shm")  # noqa: S108 - where the services keep it
    names = [name for name in shared if name.startswith(prefix)]
    assert names
    assert not [name for name in names if name.endswith(".ring")]


def test_forced_onto_grpc_no_link_is_a_ring(models: Path, tmp_path: Path) -> None:
    own = plan(models, tmp_path / "logs", 1, env={"SITS_FORCE_GRPC_LINKS": "true"})
    with running(own, MODEL) as mesh:
        infer(mesh)
        assert ways(mesh) == {"grpc+shm"}
