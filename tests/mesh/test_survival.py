"""Kill any service under load: every request is answered, and the mesh mends itself."""

import grpc
import pytest

from sits_cli.mesh import Mesh
from sits_cli.testing_load import UNAVAILABLE, Load
from sits_cli.testing_mesh import idle
from sits_core.testing import wait_until
from sits_protos.v1.control_pb2 import GetStateRequest, SetStrategyRequest
from sits_protos.v1.control_pb2_grpc import ControlStub

pytestmark = pytest.mark.mesh


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
    assert load.all_right, load


def test_a_killed_front_door_comes_back(mesh: Mesh) -> None:
    """Its clients' connections end; what they try again succeeds."""
    with Load(mesh.addresses.front) as load:
        load.wait_for_more()
        mesh.kill("preprocess")
        wait_until(lambda: load.outcomes[UNAVAILABLE], 10, "clients notice")
        load.wait_for_more(timeout_s=30)
    assert load.answered == load.sent
    assert load.outcomes["wrong"] == 0


def test_losing_both_executors_loses_no_answer(mesh: Mesh) -> None:
    with Load(mesh.addresses.front) as load:
        load.wait_for_more()
        mesh.kill("executor-0")
        mesh.kill("executor-1")
        mesh.wait_ready(30)
        load.wait_for_more(timeout_s=30)
    assert load.answered == load.sent
    assert load.outcomes["wrong"] == 0


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
    assert load.all_right, load


def test_when_idle_nothing_is_in_flight_any_more(mesh: Mesh) -> None:
    with Load(mesh.addresses.front) as load:
        load.wait_for_more()
    wait_until(lambda: idle(mesh), 10, "no batch in flight")


def test_redis_may_stay_away(mesh: Mesh) -> None:
    mesh.kill("redis", restart=False)
    with Load(mesh.addresses.front) as load:
        load.wait_for_more(200)
    mesh.revive("redis")
    assert load.all_right, load
