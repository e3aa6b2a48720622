"""Tensors of any size pass every hop: through shared memory where it is shared, inline else."""

from collections.abc import Callable
from pathlib import Path
from queue import Queue

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from sits_cli.mesh import Mesh
from sits_cli.testing_mesh import (
    Array,
    metric,
    pid_of,
    plan,
    running,
    state_of,
    status_of,
    tensor,
)
from sits_cli.testing_process import private_bytes
from sits_core.memory import KEPT_BYTES
from sits_core.testing import wait_until
from sits_protos.v1.link_pb2 import ROLE_TOPOLOGY

pytestmark = pytest.mark.mesh

MB = 1 << 20
MODEL = "identity_uint8"
TIMEOUT_S = 60
SERVICES = ("preprocess", "dispatcher", "executor-0", "executor-1")


def noise(megabytes: float, seed: int = 0) -> Array:
    size = int(megabytes * MB)
    return np.random.default_rng(seed).integers(0, 255, (1, size), np.uint8)


def unary(client: triton.InferenceServerClient, data: Array) -> Array:
    return client.infer(MODEL, [tensor(data)], client_timeout=TIMEOUT_S).as_numpy("Y")


def streamed(client: triton.InferenceServerClient, data: Array) -> Array:
    answers: Queue[tuple[triton.InferResult, InferenceServerException | None]] = Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    try:
        client.async_stream_infer(MODEL, [tensor(data)])
        result, error = answers.get(timeout=TIMEOUT_S)
    finally:
        client.stop_stream()
    if error is not None:
        raise error
    return result.as_numpy("Y")


Way = Callable[[triton.InferenceServerClient, Array], Array]


def infer(mesh: Mesh, megabytes: float, count: int = 1, way: Way = unary) -> None:
    """`count` different tensors one after the other; each must come back as it went."""
    with triton.InferenceServerClient(mesh.addresses.front) as client:
        for number in range(count):
            data = noise(megabytes, number)
            assert np.array_equal(way(client, data), data)


def transports(mesh: Mesh) -> set[bool]:
    """Whether memory is shared, for each of the dispatcher's links."""
    linked = (p for p in state_of(mesh).peers if p.hello.role != ROLE_TOPOLOGY)
    return {"shm" in peer.transport for peer in linked}


def test_large_tensors_go_through_the_pool_and_its_slots_come_back(mesh: Mesh) -> None:
    assert transports(mesh) == {True}
    front = mesh.addresses.front_metrics
    before = metric(front, "sits_pool_allocations_total")
    infer(mesh, 1, count=5)
    assert metric(front, "sits_pool_allocations_total") == before + 5
    for address in (front, *(metrics for _, metrics in mesh.addresses.executors)):
        wait_until(
            lambda at=address: metric(at, "sits_pool_slots") == 0, 10, f"no slot lent by {address}"
        )


def test_a_payload_in_a_slot_is_not_copied_between_services(mesh: Mesh) -> None:
    """The front door takes it out of the message and the slot of the result; behind it
    nobody copies anything. Small ones are carried from message to message."""
    behind = (mesh.addresses.admin, *(metrics for _, metrics in mesh.addresses.executors))

    def copied() -> tuple[float, float]:
        own = metric(mesh.addresses.front_metrics, "sits_copied_bytes_total")
        return own, sum(metric(address, "sits_copied_bytes_total") for address in behind)

    infer(mesh, 1)
    at_front, inside = copied()
    infer(mesh, 1, count=3)
    wait_until(lambda: copied() == (at_front + 3 * 3 * MB, inside), 10, "copies of large ones")
    at_front, inside = copied()
    infer(mesh, 1 / 1024, count=3)
    small = 3 << 10
    expected = (at_front + (1 + 4 + 2 + 1) * small, inside + (3 + 3 + 2 + 4) * small)
    wait_until(lambda: copied() == expected, 10, "copies of small ones")


def test_large_tensors_pass_every_hop_and_leave_no_memory_behind(mesh: Mesh) -> None:
    """OIP-10. Processes give back what they do not need after some idle seconds."""
    before = {name: private_bytes(pid_of(mesh, name)) for name in SERVICES}
    for way in (unary, streamed):
        for megabytes in (5, 33, 120):
            infer(mesh, megabytes, way=way)
    infer(mesh, 0.001, count=8)  # links keep the last message until the next
    for name, size in before.items():
        pid = pid_of(mesh, name)
        goal = size + KEPT_BYTES + 8 * MB
        wait_until(lambda pid=pid, goal=goal: private_bytes(pid) < goal, 30, f"{name} < {goal}")


@pytest.mark.parametrize("way", [unary, streamed])
def test_a_message_over_the_limit_is_refused_and_the_next_ones_work(mesh: Mesh, way: Way) -> None:
    """OIP-10. gRPC ends the call that brought it; client and connection go on."""
    with triton.InferenceServerClient(mesh.addresses.front) as client:
        status, text = status_of(lambda: way(client, noise(257)))
        assert status == "RESOURCE_EXHAUSTED"
        assert str(257 * MB)[:4] in text
        assert str(256 * MB) in text
        small = noise(0.001)
        assert np.array_equal(way(client, small), small)
        assert np.array_equal(unary(client, small), small)


@pytest.mark.parametrize("blind", ["preprocess", "executor-0", "dispatcher"])
def test_who_does_not_share_memory_gets_payloads_inline(
    blind: str, few_models: Path, tmp_path: Path
) -> None:
    """A service with a directory of its own stands for one on another host."""
    elsewhere = tmp_path / "shm"
    elsewhere.mkdir()
    own = plan(
        few_models,
        tmp_path / "logs",
        service_env={blind: {"SITS_SHM_DIR": str(elsewhere)}},
        env={"SITS_DISPATCHER_STRATEGY": "round_robin"},
    )
    with running(own, MODEL) as mesh:
        infer(mesh, 1, count=8)
        infer(mesh, 33)
        assert False in transports(mesh)
