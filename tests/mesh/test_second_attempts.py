"""An executor that stands still costs nobody more than the time of a second attempt."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
import tritonclient.grpc as triton

from sits_cli.mesh import Mesh
from sits_cli.testing_mesh import idle, metric, pid_of, plan, running, tensor, write_model
from sits_core.testing import wait_until

pytestmark = pytest.mark.mesh

TIMEOUT_S = 20
CLIENTS = 8


@pytest.fixture(scope="module")
def hedged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    root = tmp_path_factory.mktemp("hedged")
    write_model(root / "models", "m", "sleep", max_batch=1, sleep_ms=5)
    hedging = {"SITS_DISPATCHER_HEDGE_PERCENT": "50", "SITS_DISPATCHER_STRATEGY": "round_robin"}
    own = plan(root / "models", root / "logs", service_env={"dispatcher": hedging})
    with running(own, "m") as mesh:
        yield mesh


@contextmanager
def standing_still(mesh: Mesh, service: str) -> Iterator[None]:
    pid = pid_of(mesh, service)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def ask(client: triton.InferenceServerClient, number: int) -> float:
    array = np.full((1, 4), number, np.float32)
    found = client.infer("m", [tensor(array)], client_timeout=TIMEOUT_S).as_numpy("Y")
    assert found is not None
    return float(found[0, 0])


def second_attempts(mesh: Mesh) -> float:
    name = "sits_dispatcher_second_attempts_total"
    return metric(mesh.addresses.admin, name, attempt="hedge")


def test_what_hangs_is_answered_by_another_executor_and_no_load_stays(hedged: Mesh) -> None:
    with (
        triton.InferenceServerClient(hedged.addresses.front) as client,
        ThreadPoolExecutor(CLIENTS) as threads,
    ):
        assert list(threads.map(lambda n: ask(client, n), range(60))) == list(range(60))
        before = second_attempts(hedged)
        with standing_still(hedged, "executor-0"):
            answers = list(threads.map(lambda n: ask(client, n), range(CLIENTS)))
        assert answers == list(range(CLIENTS))
        assert second_attempts(hedged) > before
        assert metric(
            hedged.addresses.admin, "sits_dispatcher_second_attempts_decided_total", attempt="hedge"
        )
        wait_until(lambda: idle(hedged), TIMEOUT_S, "nothing in flight")
        assert list(threads.map(lambda n: ask(client, n), range(20))) == list(range(20))
