"""Strategies of a running mesh: of installed packages, by model, and explained to who asks."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import redis
import tritonclient.grpc as triton

from sits_cli.mesh import Mesh
from sits_cli.testing_mesh import (
    metric,
    plan,
    running,
    serves,
    state_of,
    tensor,
    whole,
    write_model,
)
from sits_core.testing import wait_until
from sits_protos.v1.link_pb2 import Role

pytestmark = pytest.mark.mesh

TIMEOUT_S = 20
BACK_S = 60
"""A busy machine takes its time to start a process."""
MODULE = """
from sits_scheduling.orders import Fifo
from sits_scheduling.strategies import STRATEGIES, Strategy

def tight(rng):
    return Strategy("tight", Fifo(), STRATEGIES["least_loaded"](rng).placement)
"""


def install(where: Path) -> None:
    """A package with an entry point, as an installer leaves it."""
    info = where / "tight_strategy-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tight_strategy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[sits.strategies]\ntight = tight_strategy:tight\n")
    (where / "tight_strategy.py").write_text(MODULE)


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    root = tmp_path_factory.mktemp("strategies")
    install(root / "packages")
    for name in ("one", "other"):
        write_model(root / "models", name, "identity")
    env = {"dispatcher": {"PYTHONPATH": str(root / "packages")}}
    with running(plan(root / "models", root / "logs", service_env=env), "other") as made:
        yield made


@pytest.fixture
def client(mesh: Mesh) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(mesh.addresses.front) as made:
        yield made


def switch(mesh: Mesh, strategy: str, *options: str) -> None:
    command = [sys.executable, "-m", "sits_cli", "switch", strategy, *options]
    at = ["--dispatcher", mesh.addresses.dispatcher]
    subprocess.run([*command, *at], check=True, timeout=60, capture_output=True)


def in_redis(mesh: Mesh) -> bytes | None:
    """The strategy of all models, as other dispatchers find it."""
    prefix = mesh.plan.env["SITS_REDIS_PREFIX"]
    with redis.Redis.from_url(mesh.redis_url or "") as store:
        return cast("bytes | None", store.hget(f"{{{prefix}}}:strategy", ""))


def fronts(mesh: Mesh) -> list[str]:
    """Front doors that are linked. For a while they take requests for a dispatcher that is away,
    and refuse what comes when it stays away for longer."""
    peers = state_of(mesh).peers
    return [peer.hello.id for peer in peers if peer.hello.role == Role.ROLE_PREPROCESS]


def ask(client: triton.InferenceServerClient, model: str, **parameters: object) -> str:
    """What the response says of why."""
    inputs = [tensor(np.ones((1, 4), np.float32))]
    result = client.infer(model, inputs, client_timeout=TIMEOUT_S, parameters=parameters)
    return str(result.get_response().parameters["sits_explain"].string_param)


def test_a_strategy_of_an_installed_package_places_what_comes(
    mesh: Mesh, client: triton.InferenceServerClient
) -> None:
    assert "tight" in state_of(mesh).strategies
    switch(mesh, "tight")
    ask(client, "one")
    assert metric(mesh.addresses.admin, "sits_dispatcher_batches_total", strategy="tight") == 1


def test_a_model_may_have_its_own(mesh: Mesh, client: triton.InferenceServerClient) -> None:
    switch(mesh, "topo_aware")
    switch(mesh, "round_robin", "--model", "one")
    assert dict(state_of(mesh).model_strategies) == {"one": "round_robin"}
    assert "strategy=round_robin;" in ask(client, "one", sits_explain=True)
    assert "strategy=topo_aware;" in ask(client, "other", sits_explain=True)


def test_who_does_not_ask_gets_no_explanation(client: triton.InferenceServerClient) -> None:
    assert ask(client, "other") == ""
    assert "executor=" in ask(client, "other", sits_explain=True)


def test_a_restarted_dispatcher_follows_what_was_switched(
    mesh: Mesh, client: triton.InferenceServerClient
) -> None:
    switch(mesh, "least_loaded")
    wait_until(lambda: in_redis(mesh) == b"least_loaded", TIMEOUT_S, "Redis took it")
    mesh.kill("dispatcher")
    wait_until(lambda: whole(mesh) and fronts(mesh) and serves(mesh, "other"), BACK_S, "it is back")
    wait_until(
        lambda: state_of(mesh).strategy == "least_loaded", TIMEOUT_S, "the choice is in Redis"
    )
    assert "strategy=least_loaded;" in ask(client, "other", sits_explain=True)
