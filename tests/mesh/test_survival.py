"""Kill any service under load: every request is answered, and the mesh mends itself."""

import threading
from collections import Counter
from types import TracebackType
from typing import Self

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from sits_cli.mesh import Mesh
from sits_core.testing import wait_until
from sits_protos.v1.control_pb2 import GetStateRequest, SetStrategyRequest
from sits_protos.v1.control_pb2_grpc import ControlStub

CLIENTS = 8
RETRYABLE = "StatusCode.UNAVAILABLE"


class Load:
    """Threads that infer without pause, check every answer and count how each one ended."""

    def __init__(self, address: str, model: str = "brief") -> None:
        self._address, self._model = address, model
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(CLIENTS)]
        self.outcomes: Counter[str] = Counter()
        self.sent = 0

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)

    @property
    def answered(self) -> int:
        return sum(self.outcomes.values())

    @property
    def right(self) -> int:
        return self.outcomes["right"]

    def _run(self, number: int) -> None:
        with triton.InferenceServerClient(self._address) as client:
            value = 0
            while not self._stop.is_set():
                value += 1
                self._count(self._one(client, float(number * 1_000_000 + value)))

    def _one(self, client: triton.InferenceServerClient, value: float) -> str:
        data = np.full((1, 4), value, np.float32)
        x = triton.InferInput("X", data.shape, "FP32")
        x.set_data_from_numpy(data)
        with self._lock:
            self.sent += 1
        try:
            answer = client.infer(self._model, [x], client_timeout=20).as_numpy("Y")
        except InferenceServerException as error:
            return str(error.status())
        return "right" if np.array_equal(answer, data) else "wrong"

    def _count(self, outcome: str) -> None:
        with self._lock:
            self.outcomes[outcome] += 1

    def wait_for_more(self, count: int = 50, timeout_s: float = 15) -> None:
        """Until `count` more requests were answered rightly."""
        goal = self.right + count
        wait_until(lambda: self.right >= goal, timeout_s, f"{count} more right answers")


@pytest.mark.mesh
@pytest.mark.parametrize("victim", ["executor-0", "dispatcher", "topology", "redis"])
def test_a_killed_service_costs_no_answer_and_comes_back(mesh: Mesh, victim: str) -> None:
    with Load(mesh.addresses.front) as load:
        load.wait_for_more()
        before = mesh.pid(victim)
        mesh.kill(victim)
        load.wait_for_more()
        wait_until(lambda: mesh.pid(victim) not in (None, before), 20, f"{victim} restarted")
        mesh.wait_ready(20)
        load.wait_for_more()
    assert load.answered == load.sent
    assert dict(load.outcomes) == {"right": load.answered}


@pytest.mark.mesh
def test_a_killed_front_door_comes_back(mesh: Mesh) -> None:
    """Its clients' connections end; what they try again succeeds."""
    with Load(mesh.addresses.front) as load:
        load.wait_for_more()
        mesh.kill("preprocess")
        wait_until(lambda: load.outcomes[RETRYABLE], 10, "clients notice")
        load.wait_for_more(timeout_s=30)
    assert load.answered == load.sent
    assert load.outcomes["wrong"] == 0


@pytest.mark.mesh
def test_losing_both_executors_loses_no_answer(mesh: Mesh) -> None:
    with Load(mesh.addresses.front) as load:
        load.wait_for_more()
        mesh.kill("executor-0")
        mesh.kill("executor-1")
        mesh.wait_ready(30)
        load.wait_for_more(timeout_s=30)
    assert load.answered == load.sent
    assert load.outcomes["wrong"] == 0


@pytest.mark.mesh
def test_switching_strategies_under_load_fails_no_request(mesh: Mesh) -> None:
    with grpc.insecure_channel(mesh.addresses.dispatcher) as channel:
        control = ControlStub(channel)
        with Load(mesh.addresses.front) as load:
            load.wait_for_more()
            for strategy in ("round_robin", "topo_aware", "least_loaded", "topo_aware"):
                answer = control.SetStrategy(SetStrategyRequest(strategy=strategy), timeout=5)
                assert answer.current == strategy
                load.wait_for_more(30)
        state = control.GetState(GetStateRequest(), timeout=5)
    assert state.strategy == "topo_aware"
    assert dict(load.outcomes) == {"right": load.answered}


@pytest.mark.mesh
def test_when_idle_nothing_is_in_flight_any_more(mesh: Mesh) -> None:
    with Load(mesh.addresses.front) as load:
        load.wait_for_more()
    with grpc.insecure_channel(mesh.addresses.dispatcher) as channel:
        control = ControlStub(channel)

        def idle() -> bool:
            peers = control.GetState(GetStateRequest(), timeout=5).peers
            return all(p.batches_in_flight == p.rows_in_flight == 0 for p in peers)

        wait_until(idle, 10, "no batch in flight")


@pytest.mark.mesh
def test_redis_may_stay_away(mesh: Mesh) -> None:
    mesh.kill("redis", restart=False)
    with Load(mesh.addresses.front) as load:
        load.wait_for_more(200)
    mesh.revive("redis")
    assert dict(load.outcomes) == {"right": load.answered}
