"""Pipelines through the front door: one executor has all of it, or the steps are on two."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton

from sits_cli.mesh import Mesh
from sits_cli.testing_mesh import (
    idle,
    plan,
    running,
    runs,
    serves,
    state_of,
    status_of,
    tensor,
    write_model,
)
from sits_core.testing import wait_until

pytestmark = pytest.mark.mesh

TIMEOUT_S = 20
Client = triton.InferenceServerClient


def step(model: str, source: str, target: str) -> str:
    return (
        f'step {{ model_name: "{model}" model_version: -1 '
        f'input_map {{ key: "X" value: "{source}" }} output_map {{ key: "Y" value: "{target}" }} }}'
    )


def write_pipeline(root: Path, name: str, *steps: str) -> None:
    folder = root / name / "1"
    folder.mkdir(parents=True)
    (folder.parent / "config.pbtxt").write_text(
        'platform: "ensemble" max_batch_size: 8\n'
        'input { name: "A" data_type: TYPE_FP32 dims: [ 3 ] }\n'
        'output { name: "B" data_type: TYPE_FP32 dims: [ 3 ] }\n'
        f"ensemble_scheduling {{ {' '.join(steps)} }}\n"
    )


def write_repository(root: Path, *models: str) -> Path:
    """Two steps, the second one in half precision, and the pipeline of both."""
    if "first" in models:
        write_model(root, "first", "fail_on", dims="[ 3 ]", value=666)
    if "second" in models:
        write_model(root, "second", "identity", "FP16", dims="[ 3 ]")
    write_pipeline(root, "both", step("first", "A", "H"), step("second", "H", "B"))
    return root


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    models = write_repository(tmp_path_factory.mktemp("whole"), "first", "second")
    with running(plan(models, tmp_path_factory.mktemp("logs"), executors=1), "both") as mesh:
        yield mesh


@pytest.fixture(scope="module")
def spread(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    one = write_repository(tmp_path_factory.mktemp("one"), "first")
    other = write_repository(tmp_path_factory.mktemp("other"), "second")
    own = plan(
        one, tmp_path_factory.mktemp("logs"),
        service_env={"executor-1": {"SITS_EXECUTOR_MODEL_REPOSITORY": str(other)}},
    )  # fmt: skip
    with running(own, "both") as mesh:
        yield mesh


def infer(mesh: Mesh, rows: list[list[float]], request_id: str = "") -> np.ndarray:  # type: ignore[type-arg]
    with Client(mesh.addresses.front) as client:
        given = tensor(np.array(rows, np.float32), name="A")
        result = client.infer("both", [given], request_id=request_id, client_timeout=TIMEOUT_S)
        found = result.as_numpy("B")
        assert found is not None
        return found


@pytest.mark.parametrize("name", ["whole", "spread"])
def test_one_request_runs_all_steps(name: str, request: pytest.FixtureRequest) -> None:
    mesh = request.getfixturevalue(name)
    before = runs(mesh, "second")
    assert infer(mesh, [[1, 2, 3], [0.1, 5, 6]]).tolist() == [
        [1, 2, 3], [float(np.float16(0.1)), 5, 6],
    ]  # fmt: skip
    assert runs(mesh, "second") == before + 1


@pytest.mark.parametrize("name", ["whole", "spread"])
def test_a_large_request_comes_through_whole(name: str, request: pytest.FixtureRequest) -> None:
    """Eight rows at once, as large as the pipeline takes them, again and again."""
    mesh = request.getfixturevalue(name)
    for number in range(20):
        rows = np.full((8, 3), number, np.float32)
        assert infer(mesh, rows.tolist()).tolist() == rows.tolist()
    wait_until(lambda: idle(mesh), TIMEOUT_S, "nothing in flight")


@pytest.mark.parametrize("name", ["whole", "spread"])
def test_the_error_of_a_step_names_it(name: str, request: pytest.FixtureRequest) -> None:
    status, text = status_of(lambda: infer(request.getfixturevalue(name), [[666, 1, 1]]))
    assert status == "INTERNAL"
    assert "step 1 (model 'first')" in text


@pytest.mark.parametrize("name", ["whole", "spread"])
def test_steps_count_in_the_statistics_of_their_models(
    name: str, request: pytest.FixtureRequest
) -> None:
    mesh = request.getfixturevalue(name)
    with Client(mesh.addresses.front) as client:

        def counts() -> dict[str, tuple[int, int]]:
            stats = client.get_inference_statistics().model_stats
            return {s.name: (s.inference_count, s.execution_count) for s in stats}

        before = counts()
        infer(mesh, [[1, 1, 1], [2, 2, 2]])
        after = counts()
        grown = {n: tuple(np.subtract(after[n], before[n])) for n in after}
        assert grown == dict.fromkeys(("both", "first", "second"), (2, 1))
        config = client.get_model_config("both").config
        assert [s.model_name for s in config.ensemble_scheduling.step] == ["first", "second"]
        assert client.get_model_metadata("both").platform == "ensemble"


def test_steps_run_where_their_models_are(spread: Mesh) -> None:
    served = {peer.hello.id for peer in state_of(spread).peers if peer.hello.device}
    assert len(served) == 2
    infer(spread, [[1, 1, 1]], "my-request")
    assert runs(spread, "first") >= 1
    assert runs(spread, "second") >= 1


def test_a_pipeline_is_ready_as_long_as_its_steps_are(whole: Mesh) -> None:
    with Client(whole.addresses.front) as client:
        client.unload_model("second")
        wait_until(lambda: not serves(whole, "both"), TIMEOUT_S, "the pipeline is not ready")
        status, text = status_of(lambda: infer(whole, [[1, 1, 1]]))
        assert status == "UNAVAILABLE"
        assert "its step model 'second' was unloaded" in text
        client.load_model("second")
        wait_until(lambda: serves(whole, "both"), TIMEOUT_S, "the pipeline is ready")
    assert infer(whole, [[1, 2, 3]]).tolist() == [[1, 2, 3]]
