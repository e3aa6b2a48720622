"""Pipelines: what is refused at load, how the graph converts, and how steps come and go."""

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from sits_core.errors import Unavailable
from sits_core.pipeline import PipelineError, read
from sits_core.testing import wait_until
from sits_executor.app import open_executor
from sits_executor.executor import Executor
from sits_executor.pipelines.backend import PipelineBackend, StepFailed, Traced
from sits_executor.repository import given
from sits_executor.repository.loaded import LoadedModel
from sits_executor.repository.manager import LoadFailed
from sits_executor.settings import ExecutorSettings
from sits_executor.testing import (
    TIMEOUT_S,
    FakeDispatcher,
    arrays_of,
    batch,
    builtin_config,
    pipeline_config,
    write_model,
)
from sits_protos.oip.grpc_service_pb2 import ModelMetadataResponse
from sits_protos.oip.model_config_pb2 import ModelConfig
from sits_protos.v1.link_pb2 import ModelState

HALF = np.dtype(np.float16)
BRAIN = np.dtype(ml_dtypes.bfloat16)


@pytest.fixture(name="models")
def make_models(repository: Path, tmp_path: Path) -> Iterator[Executor]:
    settings = ExecutorSettings(
        executor_model_repository=str(repository), executor_pool_bytes=0, shm_dir=str(tmp_path)
    )
    with open_executor(settings, CollectorRegistry()) as executor:
        yield executor


def step(model: str, source: str, target: str, *, version: int = -1) -> str:
    return (
        f'{{ model_name: "{model}" model_version: {version} '
        f'input_map {{ key: "x" value: "{source}" }} '
        f'output_map {{ key: "y" value: "{target}" }} }}'
    )


def load(models: Executor, name: str) -> LoadedModel:
    models.manager.load(name).result(TIMEOUT_S)
    return models.catalog.find(name, "")


def backend_of(models: Executor, name: str) -> PipelineBackend:
    backend = models.catalog.find(name, "").backend
    assert isinstance(backend, PipelineBackend)
    return backend


def state(models: Executor, name: str) -> tuple[str, str]:
    entry = next(e for e in models.catalog.entries() if e.name == name)
    return ModelState.Name(entry.state).removeprefix("MODEL_STATE_"), entry.reason


def ready(models: Executor, name: str) -> bool:
    return bool(models.catalog.loaded(name))


def run(models: Executor, name: str, **inputs: Any) -> Mapping[str, Any]:
    return models.catalog.find(name, "").backend.run(inputs, {})


def x(*rows: list[float]) -> Any:
    return np.array(rows, np.float32)


def two(repository: Path, first: str = "FP32", second: str = "FP32", **own: Any) -> None:
    """Models a and b, and the pipeline p of both, whose own tensors are FP32 unless `own` says."""
    write_model(repository, "a", builtin_config("identity", datatype=first))
    write_model(repository, "b", builtin_config("row_sum", datatype=second, out_dims=[1]))
    steps = [step("a", "x", "h"), step("b", "h", "y")]
    write_model(repository, "p", pipeline_config(steps, **{"out_dims": [1], **own}))


# reading


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ([], "has no step"),
        ([step("", "x", "y")], "step 1 has no model_name"),
        ([step("a", "z", "y")], "needs tensor 'z', which no step makes"),
        ([step("a", "x", "z")], "output 'y' is made by no step"),
        ([step("a", "x", "y"), step("b", "x", "y")], "'y' comes from step 1 .* and from step 2"),
        ([step("a", "x", "x")], "'x' comes from the request and from step 1"),
        ([step("a", "x", "y"), step("b", "g", "h"), step("c", "h", "g")], "in a circle: step 2"),
        ([step("a", "x", "y", version=-2)], "has model_version -2"),
        (['{ model_name: "a" output_map { key: "y" value: "y" } }'], "has no input_map"),
        (['{ model_name: "a" input_map { key: "x" value: "x" } }'], "has no output_map"),
        ([step("a", "", "y")], "maps 'x' of its input_map to nothing"),
    ],
)
def test_a_pipeline_that_cannot_be_is_refused_with_the_step_and_the_tensor(
    steps: list[str], problem: str
) -> None:
    config = given.from_text(pipeline_config(steps)).config
    with pytest.raises(PipelineError, match=problem):
        read(config)


def test_an_input_that_nobody_uses_is_refused() -> None:
    text = pipeline_config([step("a", "x", "y")])
    more = 'input { name: "spare" data_type: TYPE_FP32 dims: [ 1 ] }'
    with pytest.raises(PipelineError, match="input 'spare' is used by no step"):
        read(given.from_text(text + more).config)


def test_steps_run_in_the_order_of_their_tensors_whatever_the_order_written() -> None:
    steps = [step("c", "g", "y"), step("a", "x", "h"), step("b", "h", "g")]
    found = read(given.from_text(pipeline_config(steps)).config)
    assert [(s.number, s.model) for s in found.steps] == [(2, "a"), (3, "b"), (1, "c")]


@pytest.mark.parametrize(
    ("first", "own", "problem"),
    [
        ({"datatype": "INT32"}, {}, r"tensor 'x' is TYPE_FP32 of pipeline 'p', but TYPE_INT32 of"),
        ({"dims": [3]}, {}, r"tensor 'x' has shape \[-1, 2\] of pipeline 'p', but \[-1, 3\]"),
        ({"out_dims": [7]}, {}, r"tensor 'h' has shape \[-1, 7\] of step 1 .* but \[-1, 2\] of"),
        ({"max_batch": 4}, {}, r"max_batch_size is 8, but step 1 \(model 'a'\) takes at most 4"),
        ({"max_batch": 0}, {}, r"tensor 'x' has shape \[-1, 2\] of pipeline 'p', but \[2\]"),
    ],
)
def test_steps_that_do_not_fit_are_refused(
    repository: Path, models: Executor, first: dict[str, Any], own: dict[str, Any], problem: str
) -> None:
    two(repository, **own)
    (repository / "a" / "config.pbtxt").write_text(builtin_config("identity", **first))
    with pytest.raises(LoadFailed, match=problem):
        load(models, "p")


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ('key: "x"', 'key: "q"', "step 1 .* maps input 'q', which its model does not have: x"),
        ('key: "y"', 'key: "q"', "step 1 .* maps output 'q', which its model does not have: y"),
        ("platform", "instance_group { count: 2 } platform", "instance_group is not for ensembles"),
        ('platform: "ensemble"', "", "needs platform 'ensemble', got ''"),
    ],
)
def test_maps_and_fields_that_no_model_has_are_refused(
    repository: Path, models: Executor, name: str, value: str, problem: str
) -> None:
    two(repository)
    path = repository / "p" / "config.pbtxt"
    path.write_text(path.read_text().replace(name, value, 1))
    with pytest.raises(LoadFailed, match=problem):
        load(models, "p")


# running


def test_a_pipeline_is_one_model_with_its_own_metadata(repository: Path, models: Executor) -> None:
    two(repository)
    entry = load(models, "p").entry
    metadata = ModelMetadataResponse.FromString(entry.metadata)
    assert (metadata.platform, list(metadata.versions)) == ("ensemble", ["1"])
    assert [(t.name, t.datatype, list(t.shape)) for t in metadata.inputs] == [
        ("x", "FP32", [-1, 2])
    ]
    config = ModelConfig.FromString(entry.config)
    assert [s.model_name for s in config.ensemble_scheduling.step] == ["a", "b"]
    assert (config.backend, len(config.instance_group), entry.instances) == ("", 0, 2)


def test_what_a_step_gives_the_next_one_takes(repository: Path, models: Executor) -> None:
    two(repository)
    load(models, "p")
    outputs = run(models, "p", x=x([1, 2], [3, 4]))
    assert outputs["y"].tolist() == [[3], [7]]
    assert isinstance(outputs, Traced)
    assert [(s.model, s.version, s.rows) for s in outputs.steps] == [("a", "1", 2), ("b", "1", 2)]


def test_equal_precisions_are_not_converted(repository: Path, models: Executor) -> None:
    two(repository, "FP16", "FP16", datatype="FP16")
    load(models, "p")
    graph = backend_of(models, "p").graph
    assert graph.conversions == []
    assert [len(stage) for stage in graph.stages()] == [2]


def test_precisions_are_converted_at_the_edges_where_they_differ_only(
    repository: Path, models: Executor
) -> None:
    """FP32 in, two steps of FP16, one of BF16, FP32 out: three edges, not one a step."""
    for name, datatype in (("a", "FP16"), ("b", "FP16"), ("c", "BF16")):
        write_model(repository, name, builtin_config("identity", datatype=datatype))
    steps = [step("a", "x", "h"), step("b", "h", "g"), step("c", "g", "y")]
    write_model(repository, "p", pipeline_config(steps))
    load(models, "p")
    graph = backend_of(models, "p").graph
    assert [f"{c.source} {c.target}" for c in graph.conversions] == [
        "x:FP32 x:FP16", "g:FP16 g:BF16", "y:BF16 y:FP32",
    ]  # fmt: skip
    assert [[n.step.model for n in stage] for stage in graph.stages()] == [["a", "b"], ["c"]]
    value = np.array([[1 / 3, 1e-3]], np.float32)
    got = run(models, "p", x=value)["y"]
    assert got.dtype == np.float32
    expected = value.astype(HALF).astype(BRAIN).astype(np.float32)
    assert got.tolist() == expected.tolist()


def test_a_tensor_is_converted_once_for_all_who_need_it_so(
    repository: Path, models: Executor
) -> None:
    write_model(repository, "a", builtin_config("identity"))
    for name in "bc":
        write_model(repository, name, builtin_config("identity", datatype="BF16"))
    steps = [step("a", "x", "h"), step("b", "h", "y"), step("c", "h", "z")]
    more = 'output { name: "z" data_type: TYPE_BF16 dims: [ 2 ] }'
    write_model(repository, "p", pipeline_config(steps) + more)
    load(models, "p")
    graph = backend_of(models, "p").graph
    assert [f"{c.source} {c.target}" for c in graph.conversions] == [
        "h:FP32 h:BF16", "y:BF16 y:FP32",
    ]  # fmt: skip
    outputs = run(models, "p", x=x([1, 2]))
    assert (outputs["y"].tolist(), outputs["z"].dtype) == ([[1, 2]], BRAIN)


def test_a_failing_step_fails_the_request_and_is_named(repository: Path, models: Executor) -> None:
    write_model(repository, "a", builtin_config("identity"))
    write_model(repository, "b", builtin_config("fail_on", value=666))
    write_model(repository, "p", pipeline_config([step("a", "x", "h"), step("b", "h", "y")]))
    load(models, "p")
    with pytest.raises(StepFailed, match=r"^step 2 \(model 'b'\): ValueError: found the forbidden"):
        run(models, "p", x=x([666, 1]))


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        ("wrong_type", r"output 'y' came as FP64 \[1, 2\], declared is FP32 \[1, 2\]"),
        ("wrong_shape", r"output 'y' came as FP32 \[1, 2, 1\]"),
        ("wrong_rows", r"output 'y' came as FP32 \[0, 2\]"),
        ("no_output", "output 'y' is missing"),
    ],
)
def test_a_step_that_gives_something_else_than_it_declares_is_named(
    repository: Path, models: Executor, function: str, problem: str
) -> None:
    write_model(repository, "a", builtin_config(function))
    write_model(repository, "b", builtin_config("identity"))
    write_model(repository, "p", pipeline_config([step("a", "x", "h"), step("b", "h", "y")]))
    load(models, "p")
    with pytest.raises(StepFailed, match=problem):
        run(models, "p", x=x([1, 2]))


def test_a_pipeline_may_be_a_step(repository: Path, models: Executor) -> None:
    two(repository)
    write_model(repository, "outer", pipeline_config([step("p", "x", "y")], out_dims=[1]))
    load(models, "outer")
    assert run(models, "outer", x=x([1, 2]))["y"].tolist() == [[3]]


def test_a_pipeline_that_is_a_step_of_itself_is_refused(repository: Path, models: Executor) -> None:
    write_model(repository, "p", pipeline_config([step("q", "x", "y")]))
    write_model(repository, "q", pipeline_config([step("p", "x", "y")]))
    with pytest.raises(LoadFailed, match="step of itself: p → q → p"):
        load(models, "p")


# coming and going


def test_loading_a_pipeline_loads_its_steps_first(repository: Path, models: Executor) -> None:
    two(repository)
    load(models, "p")
    assert ready(models, "a")
    assert ready(models, "b")


def test_a_missing_step_is_the_reason_and_its_arrival_makes_the_pipeline_ready(
    repository: Path, models: Executor
) -> None:
    two(repository)
    (repository / "b").rename(repository.parent / "b")
    with pytest.raises(LoadFailed, match=r"step 2 \(model 'b'\) is not ready here"):
        load(models, "p")
    assert state(models, "p")[0] == "UNAVAILABLE"
    (repository.parent / "b").rename(repository / "b")
    load(models, "b")
    wait_until(lambda: ready(models, "p"), TIMEOUT_S, "the pipeline")


def test_unloading_a_step_makes_the_pipeline_unready_with_the_reason(
    repository: Path, models: Executor
) -> None:
    two(repository)
    write_model(repository, "outer", pipeline_config([step("p", "x", "y")], out_dims=[1]))
    load(models, "outer")
    models.manager.unload("b").result(TIMEOUT_S)
    assert state(models, "p") == ("UNAVAILABLE", "its step model 'b' was unloaded")
    assert state(models, "outer")[0] == "UNAVAILABLE"
    assert ready(models, "a")
    with pytest.raises(Unavailable, match="is unavailable"):
        models.catalog.find("p", "")
    load(models, "b")
    wait_until(lambda: ready(models, "outer"), TIMEOUT_S, "the outer pipeline")


def test_a_pipeline_unloaded_on_request_stays_so_when_its_steps_load_again(
    repository: Path, models: Executor
) -> None:
    two(repository)
    load(models, "p")
    models.manager.unload("p").result(TIMEOUT_S)
    load(models, "b")
    load(models, "a")
    assert state(models, "p") == ("UNAVAILABLE", "unloaded")
    assert ready(models, "a")


def test_unloading_with_dependents_takes_the_steps_along(
    repository: Path, models: Executor
) -> None:
    two(repository)
    load(models, "p")
    models.manager.unload("p", with_steps=True).result(TIMEOUT_S)
    assert not any(ready(models, name) for name in "pab")


def test_a_reloaded_step_is_the_one_that_runs(repository: Path, models: Executor) -> None:
    two(repository)
    load(models, "p")
    value = x([1, 2], [3, 4])
    assert run(models, "p", x=value)["y"].tolist() == [[3], [7]]
    config = builtin_config("layout", layout="broadcast")
    (repository / "a" / "config.pbtxt").write_text(config)
    load(models, "a")
    wait_until(
        lambda: run(models, "p", x=value)["y"].tolist() == [[3], [3]], TIMEOUT_S, "the new step"
    )


def test_a_step_is_closed_when_the_last_pipeline_has_let_go(
    repository: Path, models: Executor, gate: Any
) -> None:
    """A run in a pipeline goes on although its step has been unloaded."""
    write_model(repository, "a", gate.config)
    write_model(repository, "p", pipeline_config([step("a", "x", "y")]))
    pipeline = load(models, "p")
    held = models.catalog.find("a", "").shared
    gate.close()
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(pipeline.backend.run({"x": x([1, 2])}, {})))
    thread.start()
    gate.wait_for_run()
    models.manager.unload("a").result(TIMEOUT_S)
    gate.open()
    thread.join(TIMEOUT_S)
    assert got[0]["y"].tolist() == [[1, 2]]
    wait_until(lambda: held.closed, TIMEOUT_S, "closed")


def test_at_start_pipelines_load_after_the_models_they_need(
    repository: Path, models: Executor
) -> None:
    two(repository)
    (repository / "p").rename(repository / "0 comes first")
    for future in models.manager.load_all():
        future.result(TIMEOUT_S)
    assert ready(models, "0 comes first")


# through a link


def test_a_batch_of_a_pipeline_reports_its_steps_and_isolates_bad_requests(
    repository: Path, linked: Any
) -> None:
    write_model(repository, "a", builtin_config("fail_on", value=666))
    write_model(repository, "b", builtin_config("identity", datatype="FP16"))
    write_model(repository, "p", pipeline_config([step("a", "x", "h"), step("b", "h", "y")]))
    dispatcher: FakeDispatcher
    with linked() as (_, dispatcher):
        dispatcher.wait_ready("p")
        fine = dispatcher.run(batch(1, "p", [x([1, 2]), x([3, 4])]))
        assert arrays_of(fine)["y"].tolist() == [[1, 2], [3, 4]]
        assert [(s.model, s.version, s.rows) for s in fine.result.steps] == [
            ("a", "1", 2), ("b", "1", 2),
        ]  # fmt: skip
        mixed = dispatcher.run(batch(2, "p", [x([1, 2]), x([666, 4])]))
        assert arrays_of(mixed)["y"].tolist() == [[1, 2]]
        error = mixed.results[1].error
        assert error.reason == "STEP_FAILED"
        assert error.message.startswith("model 'p' failed at step 1 (model 'a'): ValueError")


def test_steps_after_the_last_caller_has_gone_do_not_run(
    repository: Path, linked: Any, gate: Any
) -> None:
    """That the cancel has come shows in the answer to a batch that was sent after it."""
    write_model(repository, "a", gate.config)
    write_model(repository, "b", builtin_config("identity"))
    write_model(repository, "p", pipeline_config([step("a", "x", "h"), step("b", "h", "y")]))
    dispatcher: FakeDispatcher
    with linked() as (running, dispatcher):
        dispatcher.wait_ready("p")
        before = runs(running.metrics(), "b")
        gate.close()
        dispatcher.send(batch(1, "p", [x([1, 2]), x([3, 4])]))
        gate.wait_for_run()
        dispatcher.cancel(1)
        dispatcher.run(batch(2, "b", [x([1, 2])]))
        gate.open()
        result = dispatcher.result(1)
        assert [r.error.reason for r in result.results] == ["CANCELLED"] * 2
        counted = "the run of batch 2, and no other"
        wait_until(lambda: runs(running.metrics(), "b") == before + 1, 10, counted)


def runs(page: str, model: str) -> float:
    name = f'sits_executor_run_seconds_count{{model="{model}"}} '
    return sum(float(line[len(name) :]) for line in page.splitlines() if line.startswith(name))
