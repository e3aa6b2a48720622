"""Large tensors travel through shared memory where it is shared, inline where it is not."""

import urllib.request
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from sits_cli import ports
from sits_cli.mesh import Mesh, Plan
from sits_core.testing import wait_until
from sits_protos.v1.control_pb2 import GetStateRequest
from sits_protos.v1.control_pb2_grpc import ControlStub
from sits_protos.v1.link_pb2 import ROLE_TOPOLOGY

pytestmark = pytest.mark.mesh

MB = 1 << 20
READY_S = 60


def infer(mesh: Mesh, megabytes: float, count: int = 1) -> None:
    """`count` different tensors at once; each must come back as it went."""
    with triton.InferenceServerClient(mesh.addresses.front) as client:
        for number in range(count):
            data = np.random.default_rng(number).integers(
                0, 255, (1, int(megabytes * MB)), np.uint8
            )
            x = triton.InferInput("X", data.shape, "UINT8")
            x.set_data_from_numpy(data)
            answer = client.infer("identity_uint8", [x], client_timeout=60).as_numpy("Y")
            assert np.array_equal(answer, data)


def metric(address: str, name: str) -> float:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def transports(mesh: Mesh) -> set[str]:
    """How bytes travel on the dispatcher's links."""
    with grpc.insecure_channel(mesh.addresses.dispatcher) as channel:
        state = ControlStub(channel).GetState(GetStateRequest(), timeout=5)
    return {peer.transport for peer in state.peers if peer.hello.role != ROLE_TOPOLOGY}


def test_large_tensors_go_through_the_pool_and_its_slots_come_back(mesh: Mesh) -> None:
    assert transports(mesh) == {"grpc+shm"}
    front = mesh.addresses.front_metrics
    before = metric(front, "sits_pool_allocations_total")
    infer(mesh, 1, count=5)
    assert metric(front, "sits_pool_allocations_total") == before + 5
    for address in (front, *(metrics for _, metrics in mesh.addresses.executors)):
        wait_until(
            lambda at=address: metric(at, "sits_pool_slots") == 0, 10, f"no slot lent by {address}"
        )


@pytest.mark.parametrize("megabytes", [5, 33, 120])
def test_large_tensors_pass_every_hop(mesh: Mesh, megabytes: int) -> None:
    infer(mesh, megabytes)


def test_a_message_over_the_limit_is_refused_and_the_next_one_works(mesh: Mesh) -> None:
    with pytest.raises(InferenceServerException, match="RESOURCE_EXHAUSTED"):
        infer(mesh, 257)
    infer(mesh, 0.001)


@pytest.mark.parametrize("blind", ["preprocess", "executor-0", "dispatcher"])
def test_who_does_not_share_memory_gets_payloads_inline(
    blind: str, models: Path, tmp_path: Path
) -> None:
    """A service with a directory of its own stands for one on another host."""
    elsewhere = tmp_path / "shm"
    elsewhere.mkdir()
    plan = Plan(
        ports.free(executors=2),
        models=models,
        log_dir=tmp_path / "logs",
        service_env={blind: {"SITS_SHM_DIR": str(elsewhere)}},
        env={"SITS_DISPATCHER_STRATEGY": "round_robin"},
    )
    with Mesh(plan) as mesh:
        mesh.wait_ready(READY_S)
        with triton.InferenceServerClient(mesh.addresses.front) as client:
            wait_until(lambda: client.is_model_ready("identity_uint8"), READY_S)
        infer(mesh, 1, count=8)
        assert "grpc" in transports(mesh)
