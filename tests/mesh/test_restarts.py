"""Processes killed again and again leave shared memory bounded, and the mesh whole (SHM-01, 02)."""

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sits_cli.mesh import Mesh
from sits_cli.testing_load import Load
from sits_cli.testing_mesh import pid_of, pids, plan, running, state_of, whole
from sits_cli.testing_process import children, shared_files
from sits_core.testing import wait_until
from sits_protos.v1.link_pb2 import ROLE_EXECUTOR

pytestmark = pytest.mark.mesh

MODEL = "identity_fp32"
LARGE = 100_000
"""Elements of a tensor that travels through the pools, 400 kB."""
VICTIMS = ("dispatcher", "executor-0", "executor-1")
MB = 1 << 20
POOLS = {"preprocess": 32 * MB, "executor": 8 * MB}
WITHOUT_POOLS = 8 * MB
"""Probes, and rings in the moment between offer and answer."""
BACK_S = 20


@pytest.fixture(scope="module")
def fragile(
    few_models: Path, mesh: Mesh, collector: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mesh]:
    """A second deployment on this host, with the Redis of the first, all requests traced."""
    own = plan(
        few_models,
        tmp_path_factory.mktemp("fragile"),
        env={
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
            "SITS_TRACE_RATIO": "1",
            "SITS_PREPROCESS_POOL_BYTES": str(POOLS["preprocess"]),
            "SITS_EXECUTOR_POOL_BYTES": str(POOLS["executor"]),
        },
        redis_url=mesh.redis_url,
    )
    with running(own, MODEL) as made:
        yield made
    assert shared_files(own.env["SITS_REDIS_PREFIX"]) == {}


def files_of(mesh: Mesh) -> dict[str, int]:
    return shared_files(mesh.plan.env["SITS_REDIS_PREFIX"])


def executors_linked(mesh: Mesh) -> int:
    return sum(peer.hello.role == ROLE_EXECUTOR for peer in state_of(mesh).peers)


def strike(mesh: Mesh, number: signal.Signals) -> None:
    """End the dispatcher and both executors; they come back at once."""
    before = {name: mesh.pid(name) for name in VICTIMS}
    for name in VICTIMS:
        mesh.kill(name, number)
    for name in VICTIMS:
        wait_until(lambda n=name: mesh.pid(n) != before[n], BACK_S, f"{name} ended")
        mesh.revive(name)
        wait_until(lambda n=name: mesh.pid(n), BACK_S, f"{name} started")


def test_ends_of_any_kind_leave_one_generation_of_files_at_most(fragile: Mesh, mesh: Mesh) -> None:
    """24 processes killed and 12 ended in order while large tensors flow, some of the kills in
    the middle of a start; the other deployment keeps its files."""
    rng, other = random.Random(11), files_of(mesh)
    generation = POOLS["preprocess"] + 2 * POOLS["executor"]
    with Load(fragile.addresses.front, MODEL, clients=3, elements=LARGE) as load:
        load.wait_for_more(10)
        for round_number in range(12):
            orderly = round_number % 3 == 2
            strike(fragile, signal.SIGTERM if orderly else signal.SIGKILL)
            assert sum(files_of(fragile).values()) <= 2 * generation + WITHOUT_POOLS
            if round_number % 2:
                wait_until(lambda: whole(fragile), BACK_S, "all ready")
                load.wait_for_more(10, BACK_S)
            else:
                time.sleep(0.5 * rng.random())  # strike again while they start
        wait_until(lambda: whole(fragile), BACK_S, "all ready")
        wait_until(lambda: executors_linked(fragile) == 2, BACK_S, "both executors linked")
        load.wait_for_more(20, BACK_S)
    assert load.answered == load.sent
    assert load.outcomes["wrong"] == 0
    assert sum(files_of(fragile).values()) <= generation + WITHOUT_POOLS
    assert files_of(mesh) == other
    with Load(mesh.addresses.front, MODEL, clients=1, elements=LARGE) as load:
        load.wait_for_more(10)
    assert load.all_right, load


def test_spans_come_from_every_process_and_none_has_children(fragile: Mesh, collector: Any) -> None:
    """GRP-03: no service works through forked or spawned workers; each exports by itself."""
    with Load(fragile.addresses.front, MODEL) as load:
        for name, pid in pids(fragile).items():
            wait_until(lambda pid=pid: collector.spans.get(pid), 20, f"spans of {name}")
    assert load.all_right, load
    assert {name: children(pid_of(fragile, name)) for name in fragile.names()} == dict.fromkeys(
        fragile.names(), ""
    )
