"""Two dispatchers know nothing of each other: an executor divides itself among them."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from sits_cli import ports
from sits_cli.mesh import Mesh
from sits_cli.testing_mesh import metric, plan, running, write_model
from sits_core.testing import wait_until
from sits_protos.v1.control_pb2 import GetStateRequest, GetStateResponse
from sits_protos.v1.control_pb2_grpc import ControlStub

pytestmark = pytest.mark.mesh

TIMEOUT_S = 20
CLIENTS, ROWS, RUN_MS = 32, 4, 40
"""Eight full runs wait."""
DEADLINE_MS = 150
"""Of three runs."""
SLOTS = 2


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """One instance behind two dispatchers behind one front door."""
    root, other = tmp_path_factory.mktemp("shared"), ports.free(0)
    write_model(root / "models", "steady", "sleep", max_batch=ROWS, sleep_ms=RUN_MS)
    own = plan(root / "models", root / "logs", executors=1)
    both = f"{own.addresses.dispatcher},{other.dispatcher}"
    second = {
        "dispatcher-1": {
            "SITS_DISPATCHER_BIND": other.dispatcher,
            "SITS_DISPATCHER_ADMIN_BIND": other.admin,
        }
    }
    settings = {"preprocess": {"SITS_PREPROCESS_DISPATCHERS": both}}
    with running(replace(own, more=second, service_env=settings), "steady") as mesh:
        wait_until(lambda: len(state_of_executor(mesh).peers) == 2, TIMEOUT_S, "both are linked")
        yield mesh


def state_of_executor(mesh: Mesh) -> GetStateResponse:
    with grpc.insecure_channel(mesh.addresses.executors[0][0]) as channel:
        return ControlStub(channel).GetState(GetStateRequest(), timeout=5)


def admins(mesh: Mesh) -> tuple[str, str]:
    return mesh.addresses.admin, mesh.plan.more["dispatcher-1"]["SITS_DISPATCHER_ADMIN_BIND"]


class Clients:
    """Ask again and again, with a deadline if one is given; how each request ended is kept."""

    def __init__(self, address: str, deadline_ms: int = 0) -> None:
        self._deadline_ms = deadline_ms
        self._channel, self._stop = grpc.insecure_channel(address), threading.Event()
        self._stub = GRPCInferenceServiceStub(self._channel)
        self.answered, self.refused = 0, list[dict[str, str]]()
        self._pool = ThreadPoolExecutor(CLIENTS)

    def __enter__(self) -> "Clients":
        self._asking = [self._pool.submit(self._ask) for _ in range(CLIENTS)]
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for each in self._asking:
            each.result()
        self._pool.shutdown()
        self._channel.close()

    def _ask(self) -> None:
        request = pb.ModelInferRequest(model_name="steady")
        request.inputs.add(name="X", datatype="FP32", shape=[1, 4])
        request.raw_input_contents.append(np.ones((1, 4), np.float32).tobytes())
        if self._deadline_ms:
            request.parameters["timeout"].int64_param = self._deadline_ms * 1000
        while not self._stop.is_set():
            try:
                self._stub.ModelInfer(request, timeout=TIMEOUT_S)
                self.answered += 1
            except grpc.RpcError as error:
                self.refused.append(dict(error.trailing_metadata()))
                self._stop.wait(0.005)


def test_no_more_waits_at_an_executor_than_for_one_dispatcher(shared: Mesh) -> None:
    with Clients(shared.addresses.front) as clients:
        wait_until(lambda: clients.answered >= CLIENTS, TIMEOUT_S, "they are answered")
        held = [
            sum(peer.batches_in_flight for peer in state_of_executor(shared).peers)
            for _ in range(200)
        ]
        wait_until(lambda: clients.answered >= 3 * CLIENTS, TIMEOUT_S, "answers go on")
    assert max(held) == SLOTS
    assert clients.refused == []
    for admin in admins(shared):
        assert metric(admin, "sits_dispatcher_rows_total", model="steady") > 0


def test_what_cannot_be_in_time_is_refused_and_the_rest_answered(shared: Mesh) -> None:
    with Clients(shared.addresses.front, DEADLINE_MS) as clients:
        wait_until(lambda: clients.answered >= 20, TIMEOUT_S, "some are answered")
        wait_until(lambda: len(clients.refused) >= 50, TIMEOUT_S, "some are refused")
    reasons = {trailers["sits-reason"] for trailers in clients.refused}
    assert all(reason.startswith("DEADLINE_") for reason in reasons), reasons
