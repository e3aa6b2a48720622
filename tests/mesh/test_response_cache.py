"""The response cache in a whole mesh: two front doors, one Redis, models that are reloaded."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
import redis
import tritonclient.grpc as triton

from sits_cli.mesh import Mesh
from sits_cli.testing_mesh import metric, plan, running, runs, serves, tensor, write_model
from sits_core.testing import free_port, wait_until

pytestmark = [pytest.mark.mesh, pytest.mark.redis]

BACK_S = 20
CACHED = "response_cache { enable: true }"
LOOKUPS = "sits_response_cache_lookups_total"
SECOND = {
    "SITS_PREPROCESS_BIND": f"127.0.0.1:{free_port()}",
    "SITS_PREPROCESS_METRICS_BIND": f"127.0.0.1:{free_port()}",
    "SITS_PREPROCESS_CONTROL_BIND": f"127.0.0.1:{free_port()}",
}


@pytest.fixture(scope="module")
def caching(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """Two executors and two front doors; answers stay in the first level for a moment only."""
    models = tmp_path_factory.mktemp("models")
    write_model(models, "kept", "row_sum", more=CACHED)
    write_model(models, "plain", "row_sum")
    own = plan(
        models,
        tmp_path_factory.mktemp("logs"),
        env={"SITS_PREPROCESS_RESPONSE_CACHE_BYTES": str(1 << 20)},
    )
    second = {**SECOND, "SITS_PREPROCESS_DISPATCHERS": own.addresses.dispatcher}
    with running(replace(own, more={"preprocess-1": second}), "kept") as made:
        wait_until(lambda: made.ready("preprocess-1"), BACK_S)
        yield made


@pytest.fixture
def clients(caching: Mesh) -> Iterator[list[triton.InferenceServerClient]]:
    with ExitStack() as stack:
        addresses = (caching.addresses.front, SECOND["SITS_PREPROCESS_BIND"])
        yield [stack.enter_context(triton.InferenceServerClient(at)) for at in addresses]


def ask(client: triton.InferenceServerClient, value: float, model: str = "kept") -> float:
    x = np.full((1, 3), value, np.float32)
    found: float = client.infer(model, [tensor(x)]).as_numpy("Y").item()
    return found


def looked_up(address: str, result: str) -> float:
    return metric(address, LOOKUPS, result=result)


def keeps(mesh: Mesh, client: triton.InferenceServerClient) -> bool:
    """Whether the first front door gives answers again."""
    before = looked_up(mesh.addresses.front_metrics, "memory")
    for _ in range(2):
        ask(client, 99)
    return looked_up(mesh.addresses.front_metrics, "memory") > before


def test_one_run_answers_all_who_ask_the_same_at_either_front_door(
    caching: Mesh, clients: list[triton.InferenceServerClient]
) -> None:
    first, second = clients
    before = runs(caching, "kept")
    assert ask(first, 2) == 6.0
    with redis.Redis.from_url(caching.redis_url or "") as store:
        prefix = caching.plan.env["SITS_REDIS_PREFIX"]
        wait_until(lambda: list(store.scan_iter(f"{{{prefix}}}:answer:*")), BACK_S)
        (key,) = store.scan_iter(f"{{{prefix}}}:answer:*")
        assert 0 < store.pttl(key) <= 60_000
    assert [ask(client, 2) for client in (first, second) * 2] == [6.0] * 4
    assert runs(caching, "kept") - before == 1
    assert looked_up(SECOND["SITS_PREPROCESS_METRICS_BIND"], "redis") == 1
    assert looked_up(caching.addresses.front_metrics, "memory") == 2


def test_other_models_run_every_time(
    caching: Mesh, clients: list[triton.InferenceServerClient]
) -> None:
    before = runs(caching, "plain")
    assert [ask(clients[0], 2, "plain") for _ in range(3)] == [6.0] * 3
    assert runs(caching, "plain") - before == 3


def test_statistics_tell_it_to_a_stock_client(
    caching: Mesh, clients: list[triton.InferenceServerClient]
) -> None:
    for _ in range(3):
        ask(clients[0], 5)
    (stats,) = clients[0].get_inference_statistics("kept", as_json=True)["model_stats"]
    part = stats["inference_stats"]
    assert int(part["cache_hit"]["count"]) >= 2
    assert int(part["cache_miss"]["count"]) >= 1


def test_a_model_that_was_reloaded_with_something_else_runs_again(
    caching: Mesh, clients: list[triton.InferenceServerClient]
) -> None:
    first, second = clients
    ask(first, 7)
    config = first.get_model_config("kept", as_json=True)["config"]
    config["parameters"]["note"] = {"string_value": "second"}
    before = runs(caching, "kept")
    assert ask(first, 7) == 21.0
    assert runs(caching, "kept") == before
    first.load_model("kept", config=json.dumps(config))
    assert ask(first, 7) == ask(second, 7) == 21.0
    assert runs(caching, "kept") > before


def test_without_redis_each_front_door_has_its_own(
    caching: Mesh, clients: list[triton.InferenceServerClient]
) -> None:
    wait_until(lambda: keeps(caching, clients[0]), BACK_S, "the pause after a load")
    caching.kill("redis", restart=False)
    try:
        before = runs(caching, "kept")
        for client in clients:
            assert [ask(client, 11) for _ in range(3)] == [33.0] * 3
        assert runs(caching, "kept") - before == 2
    finally:
        caching.revive("redis")
    wait_until(lambda: serves(caching, "kept"), BACK_S)
