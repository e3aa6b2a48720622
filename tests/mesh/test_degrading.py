"""Governance at level 3 in a whole mesh: cheaper and kept answers first, then Bronze is shed."""

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from sits_cli.mesh import Mesh
from sits_cli.testing_mesh import idle, metric, plan, running, runs, state_of, tensor, write_model
from sits_core.testing import wait_until

pytestmark = pytest.mark.mesh

TIMEOUT_S = 20
SOME_S = 60
"""A level whose signal comes back on a slow machine is kept up to 40 looks longer."""
CROWD = 24
"""Clients that ask one instance again and again: the last in line waits for 23 runs of 50 ms."""
OVER_S = 0.01
"""After so long what was kept is over for sure: a round trip may be shorter than its life."""
KEPT = """
response_cache { enable: true }
parameters { key: "response_cache_ttl_s" value: { string_value: "0.001" } }
parameters { key: "response_cache_stale_s" value: { string_value: "3600" } }
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """One executor, and a governor that looks twice a second. Version 1 of `costly` is the cheaper
    one; answers of `kept` are over at once."""
    root = tmp_path_factory.mktemp("degrading")
    models = root / "models"
    write_model(models, "slow", "sleep", max_batch=1, sleep_ms=50)
    write_model(models, "plain", "row_sum")
    write_model(models, "kept", "row_sum", more=KEPT)
    write_model(models, "costly", "row_sum", more="version_policy { all {} }")
    (models / "costly" / "2").mkdir()
    own = plan(
        models, root / "logs", executors=1,
        service_env={
            "preprocess": {
                "SITS_PREPROCESS_FALLBACK": "costly=1",
                "SITS_PREPROCESS_RESPONSE_CACHE_BYTES": str(1 << 20),
            },
            "dispatcher": {"SITS_DISPATCHER_GOVERNANCE_PERIOD_S": "0.5"},
        },
    )  # fmt: skip
    with running(own, "slow") as made:
        yield made


class Client:
    """What clients see of the level: a Gold one of cheaper versions, a Bronze one of the rest."""

    def __init__(self, stock: triton.InferenceServerClient) -> None:
        self._stock = stock

    def ask(self, model: str, tenant: str = "bronze") -> triton.InferResult:
        inputs = [tensor(np.full((1, 3), 2, np.float32))]
        headers = {"sits-tenant": tenant}
        return self._stock.infer(model, inputs, client_timeout=TIMEOUT_S, headers=headers)

    def version(self) -> str:
        """That answers who names none; empty when it is refused."""
        try:
            return str(self.ask("costly", "gold").get_response().model_version)
        except InferenceServerException:
            return ""

    def stale(self) -> bool:
        """Whether it gets an answer that is over; a right one in any case."""
        time.sleep(OVER_S)
        result = self.ask("kept")
        assert result.as_numpy("Y").item() == 6.0
        return "sits_stale_ms" in result.get_response().parameters

    def shed(self) -> bool:
        try:
            self.ask("plain")
        except InferenceServerException as error:
            return "while the mesh is overloaded" in str(error.message())
        return False


@pytest.fixture
def client(small: Mesh) -> Iterator[Client]:
    with triton.InferenceServerClient(small.addresses.front) as stock:
        yield Client(stock)


class Crowd:
    """Gold clients of `slow`, until the end of the block."""

    def __init__(self, mesh: Mesh) -> None:
        self._address, self._stop = mesh.addresses.front, threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(CROWD)]

    def __enter__(self) -> "Crowd":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        with triton.InferenceServerClient(self._address) as client:
            inputs = [tensor(np.ones((1, 3), np.float32))]
            while not self._stop.is_set():
                try:
                    client.infer("slow", inputs, headers={"sits-tenant": "gold"})
                except InferenceServerException:  # Gold is the last that is shed
                    self._stop.wait(0.1)


def degraded(mesh: Mesh) -> bool:
    return state_of(mesh).governance.level == "degrade"


def sheds(mesh: Mesh, tier: str) -> bool:
    return tier in state_of(mesh).governance.shed_tiers


def test_level_3_gives_cheaper_and_kept_answers_then_sheds_and_all_of_it_ends(
    small: Mesh, client: Client
) -> None:
    before = runs(small, "kept")
    assert [client.stale() for _ in range(3)] == [False] * 3
    # What is over is computed anew while all is well; answers come before they are counted.
    wait_until(lambda: runs(small, "kept") - before >= 3, SOME_S)
    assert runs(small, "kept") - before == 3
    assert client.version() == "2"

    # What asks here waits for nothing, so that it would make the queue's median small.
    with Crowd(small):
        wait_until(lambda: degraded(small) and client.version() == "1", SOME_S, "cheaper")
        wait_until(lambda: degraded(small) and client.stale(), SOME_S, "over, but given")
        wait_until(
            lambda: sheds(small, "bronze") and client.shed() and client.stale(),
            SOME_S,
            "Bronze is refused, but for what is kept",
        )
    assert metric(small.addresses.front_metrics, "sits_response_cache_lookups_total",
                  result="stale") > 0  # fmt: skip

    wait_until(lambda: state_of(small).governance.level == "normal", SOME_S, "it is calm again")
    wait_until(lambda: client.version() == "2", TIMEOUT_S, "the usual version answers")
    assert not client.shed()
    before = runs(small, "kept")
    assert not client.stale()
    wait_until(lambda: runs(small, "kept") - before >= 1, SOME_S)
    assert runs(small, "kept") - before == 1
    steps = list(reversed(state_of(small).governance.events))
    worst = next(step for step in steps if step.after == "degrade")
    assert not worst.shed_tiers, "the cheaper answer comes first"
    assert worst.cause.startswith("queue_median_ms")
    assert steps[-1].after == "normal"
    wait_until(lambda: idle(small), TIMEOUT_S, "nothing in flight")
