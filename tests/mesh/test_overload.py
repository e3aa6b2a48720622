"""Twice of what fits: Gold is answered, Bronze is refused with a reason, and calm returns."""

import json
import threading
from collections import Counter
from collections.abc import Iterator

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from sits_cli.mesh import Mesh
from sits_cli.testing_mesh import (
    executor_metric,
    idle,
    metric,
    plan,
    running,
    state_of,
    write_model,
)
from sits_core.testing import wait_until

pytestmark = pytest.mark.mesh

TIMEOUT_S = 20
BRONZE, GOLD = 16, 2
"""Clients that ask again and again. An instance takes four rows at once."""


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """One instance, a quota for Bronze, and a governor that looks twice a second."""
    root = tmp_path_factory.mktemp("overload")
    write_model(root / "models", "steady", "sleep", max_batch=4, sleep_ms=40)
    write_model(root / "models", "long", "sleep", max_batch=1, sleep_ms=500)
    tenants = root / "tenants.json"
    tenants.write_text(json.dumps({"tenants": {"bronze": {"tier": "bronze", "max_waiting": 4}}}))
    own = plan(
        root / "models", root / "logs", executors=1,
        env={"SITS_TENANTS_FILE": str(tenants)},
        service_env={"dispatcher": {"SITS_DISPATCHER_GOVERNANCE_PERIOD_S": "0.5"}},
    )  # fmt: skip
    with running(own, "long") as made:
        yield made


@pytest.fixture
def stub(crowded: Mesh) -> Iterator[GRPCInferenceServiceStub]:
    with grpc.insecure_channel(crowded.addresses.front) as channel:
        yield GRPCInferenceServiceStub(channel)


def request(model: str, tenant: str = "") -> pb.ModelInferRequest:
    made = pb.ModelInferRequest(model_name=model)
    made.inputs.add(name="X", datatype="FP32", shape=[1, 4])
    made.raw_input_contents.append(np.ones((1, 4), np.float32).tobytes())
    if tenant:
        made.parameters["sits_tenant"].string_param = tenant
    return made


class Clients:
    """Ask for `model` until they are told to stop; every answer is kept."""

    def __init__(self, stub: GRPCInferenceServiceStub) -> None:
        self._stub, self._stop = stub, threading.Event()
        self.answered: Counter[str] = Counter()
        self.refused: list[tuple[str, dict[str, str]]] = []
        tenants = ["bronze"] * BRONZE + ["gold"] * GOLD
        self._threads = [threading.Thread(target=self._ask, args=(t,)) for t in tenants]

    def __enter__(self) -> "Clients":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, tenant: str) -> None:
        while not self._stop.is_set():
            try:
                self._stub.ModelInfer(request("steady", tenant), timeout=TIMEOUT_S)
                self.answered[tenant] += 1
            except grpc.RpcError as error:
                self.refused.append((tenant, dict(error.trailing_metadata())))
                self._stop.wait(0.005)


def rows_run(crowded: Mesh) -> float:
    return metric(crowded.addresses.admin, "sits_dispatcher_rows_total", model="steady")


def test_gold_is_answered_bronze_is_refused_and_the_mesh_governs_itself(
    crowded: Mesh, stub: GRPCInferenceServiceStub
) -> None:
    with Clients(stub) as clients:
        wait_until(lambda: state_of(crowded).governance.level != "normal", TIMEOUT_S, "it worries")
        wait_until(lambda: clients.answered["gold"] >= 20, TIMEOUT_S, "Gold is answered")
        wait_until(lambda: len(clients.refused) >= 20, TIMEOUT_S, "Bronze is refused")
    assert {tenant for tenant, _ in clients.refused} == {"bronze"}
    reasons = {trailers["sits-reason"] for _, trailers in clients.refused}
    assert reasons <= {"QUOTA_WAITING_EXCEEDED", "SHED_UNDER_OVERLOAD"}
    assert all(int(t["sits-retry-after-ms"]) > 0 for _, t in clients.refused)
    wait_until(lambda: idle(crowded), TIMEOUT_S, "nothing in flight")
    assert rows_run(crowded) == clients.answered.total(), (
        "what was refused never left the front door"
    )
    wait_until(
        lambda: state_of(crowded).governance.level == "normal", TIMEOUT_S, "it is calm again"
    )
    steps = state_of(crowded).governance.events
    assert (steps[-1].before, steps[0].after) == ("normal", "normal")
    assert all(step.cause for step in steps)
    front = crowded.addresses.front_metrics
    counted = metric(front, "sits_preprocess_refused_total")
    assert counted == len(clients.refused)


def test_a_deadline_behind_too_much_work_is_refused_at_once(
    crowded: Mesh, stub: GRPCInferenceServiceStub
) -> None:
    """Two seconds are enough for the run, not for the ten seconds of runs before it."""
    stub.ModelInfer(request("long"), timeout=TIMEOUT_S)
    ahead = [stub.ModelInfer.future(request("long", "gold"), timeout=60) for _ in range(20)]
    queued = crowded.addresses.front_metrics
    wait_until(lambda: metric(queued, "sits_preprocess_queued") >= 15, TIMEOUT_S, "they wait")
    runs = executor_metric(crowded, "sits_executor_run_seconds_count", model="long")
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(request("long", "gold"), timeout=2)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    trailers = dict(caught.value.trailing_metadata())
    assert trailers["sits-reason"] == "DEADLINE_UNREACHABLE"
    assert int(trailers["sits-retry-after-ms"]) > 0
    assert executor_metric(crowded, "sits_executor_run_seconds_count", model="long") - runs < 15
    for call in ahead:
        call.cancel()
    wait_until(lambda: idle(crowded), TIMEOUT_S, "nothing in flight")
