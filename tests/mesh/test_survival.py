"""Kill any service under load: every request is answered, and the mesh mends itself."""

import json
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable

import pytest

from sits_cli.mesh import Mesh
from sits_cli.testing_load import UNAVAILABLE, Load
from sits_cli.testing_mesh import idle, state_of, whole
from sits_core.registry import TOPOLOGY_PERIOD_S
from sits_core.testing import wait_until
from sits_protos.v1.link_pb2 import Role

pytestmark = pytest.mark.mesh


WHOLE_AGAIN_S = 5.0
"""After the process is back; it may need some seconds to start on a busy machine."""
START_S = 30


def complete(mesh: Mesh) -> bool:
    """Every service ready, both executors and the front door linked, Redis and weights fresh."""
    if not whole(mesh):
        return False
    state = state_of(mesh)
    roles = Counter(peer.hello.role for peer in state.peers if peer.connected)
    linked = roles[Role.ROLE_EXECUTOR] == 2 and roles[Role.ROLE_PREPROCESS] == 1
    return linked and state.redis_connected and 0 <= state.topology_age_s < 2 * TOPOLOGY_PERIOD_S


@pytest.mark.parametrize("victim", ["executor-0", "dispatcher", "topology", "redis"])
def test_a_killed_service_costs_no_answer_and_the_mesh_heals(mesh: Mesh, victim: str) -> None:
    with Load(mesh.addresses.front) as load:
        load.wait_for_more()
        before = mesh.pid(victim)
        mesh.kill(victim)
        load.wait_for_more()
        wait_until(lambda: mesh.pid(victim) not in (None, before), START_S, f"{victim} restarted")
        wait_until(lambda: whole(mesh), START_S, "every service ready")
        wait_until(lambda: complete(mesh), WHOLE_AGAIN_S, "the mesh whole again")
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
        wait_until(lambda: whole(mesh), START_S, "every service ready")
        load.wait_for_more(timeout_s=30)
    assert load.answered == load.sent
    assert load.outcomes["wrong"] == 0


def by_command(mesh: Mesh, strategy: str) -> str:
    command = [sys.executable, "-m", "sits_cli", "switch", strategy, "--json"]
    options = ["--dispatcher", mesh.addresses.dispatcher]
    done = subprocess.run([*command, *options], capture_output=True, check=True, timeout=60)
    return str(json.loads(done.stdout)["current"])


def by_http(mesh: Mesh, strategy: str) -> str:
    url = f"http://{mesh.addresses.admin}/v1/switch?strategy={strategy}"
    with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=20) as answer:
        return str(json.load(answer)["current"])


@pytest.mark.parametrize("switch", [by_command, by_http])
def test_switching_strategies_under_load_fails_no_request(
    mesh: Mesh, switch: Callable[[Mesh, str], str]
) -> None:
    with Load(mesh.addresses.front) as load:
        for strategy in ("round_robin", "topo_aware", "least_loaded", "topo_aware"):
            load.wait_for_more(30)
            assert switch(mesh, strategy) == strategy
            assert state_of(mesh).strategy == strategy
        load.wait_for_more(30)
    assert load.all_right, load


def test_when_idle_nothing_is_in_flight_any_more(mesh: Mesh) -> None:
    with Load(mesh.addresses.front) as load:
        load.wait_for_more()
    wait_until(lambda: idle(mesh, but=1), 10, "no batch in flight")
