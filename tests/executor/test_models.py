"""Loading, reloading and unloading while others, or older versions, serve."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from sits_core.errors import Internal, InvalidArgument, NotFound, SitsError, Unavailable
from sits_core.testing import wait_until
from sits_executor.app import open_executor
from sits_executor.backends import choice
from sits_executor.backends.base import LoadError
from sits_executor.executor import Executor
from sits_executor.repository.manager import LoadFailed
from sits_executor.settings import ExecutorSettings
from sits_executor.testing import TIMEOUT_S, builtin_config, write_model
from sits_protos.oip.grpc_service_pb2 import ModelMetadataResponse
from sits_protos.oip.model_config_pb2 import ModelConfig
from sits_protos.v1.link_pb2 import ModelEntry, ModelState


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture(name="models")
def make_models(
    repository: Path, tmp_path: Path, registry: CollectorRegistry
) -> Iterator[Executor]:
    settings = ExecutorSettings(
        executor_model_repository=str(repository),
        executor_upload_bytes=1 << 20,
        executor_pool_bytes=0,
        shm_dir=str(tmp_path),
    )
    with open_executor(settings, registry) as executor:
        yield executor


def load(models: Executor, name: str, *args: Any) -> None:
    models.manager.load(name, *args).result(TIMEOUT_S)


def unload(models: Executor, name: str) -> None:
    models.manager.unload(name).result(TIMEOUT_S)


def error_of(future: "Future[None]") -> SitsError:
    error = future.exception(TIMEOUT_S)
    assert isinstance(error, SitsError)
    return error


def states(models: Executor) -> dict[tuple[str, str], str]:
    return {
        (e.name, e.version): ModelState.Name(e.state).removeprefix("MODEL_STATE_")
        for e in models.catalog.entries()
    }


def reason(models: Executor, name: str) -> str:
    return next(e.reason for e in models.catalog.entries() if e.name == name)


def announced(models: Executor, name: str, version: str = "1") -> ModelEntry:
    return models.catalog.find(name, version).entry


def test_versions_follow_the_policy_and_the_newest_is_the_default(
    repository: Path, models: Executor, onnx_models: Any
) -> None:
    files = {f"{v}/model.onnx": onnx_models.add(["b", 1], float(v)) for v in (1, 2, 3)}
    write_model(repository, "add", "version_policy { latest { num_versions: 2 } }", files)
    load(models, "add")
    assert states(models) == {("add", "2"): "READY", ("add", "3"): "READY"}
    newest = models.catalog.find("add", "")
    assert newest.entry.version == "3"
    x = np.zeros((1, 1), np.float32)
    assert newest.backend.run({"a": x, "b": x}, {})["sum"].item() == 3.0
    metadata = ModelMetadataResponse.FromString(newest.entry.metadata)
    assert (list(metadata.versions), metadata.platform) == (["2", "3"], "onnxruntime_onnx")


def test_an_announcement_says_all_that_a_front_door_needs(
    repository: Path, models: Executor
) -> None:
    config = builtin_config("identity", instances=3).replace(
        "dims: [2] }\nparameters", 'dims: [2] label_filename: "labels.txt" }\nparameters'
    )
    write_model(repository, "m", config, {"1/x": b"", "labels.txt": b"cat\ndog\n"})
    load(models, "m")
    entry = announced(models, "m")
    assert (entry.instances, entry.slots) == (3, 6)
    assert list(entry.labels["y"].values) == ["cat", "dog"]
    parsed = ModelConfig.FromString(entry.config)
    assert (parsed.name, parsed.backend, parsed.max_batch_size) == ("m", "builtin", 8)


@pytest.mark.parametrize(
    ("config", "files", "problem"),
    [
        ("", {"1/x.txt": b""}, "no file '1/model.onnx'"),
        ("", {"1/model.pt": b""}, "may hold pickled objects"),
        ('default_model_filename: "model.pkl"', {"1/model.pkl": b""}, "may hold pickled objects"),
        ('default_model_filename: "../../x"', {"1/x": b""}, "invalid file path"),
        ("", {"config.txt": b""}, "has no version"),
        ("", {"1/model.onnx": b"nonsense"}, "Protobuf parsing failed"),
        ("nonsense", {"1/model.onnx": b""}, "config.pbtxt cannot be read"),
        ('name: "other"', {"1/model.onnx": b""}, "is for model 'other'"),
        ('backend: "python"', {"1/model.py": b""}, "backend 'python' is unknown"),
        ('platform: "tensorflow_graphdef"', {"1/x": b""}, "platform 'tensorflow_graphdef'"),
        ("sequence_batching {}", {"1/model.onnx": b""}, "does not support"),
        (
            builtin_config("identity") + "\ninstance_group { kind: KIND_GPU }",
            {"1/x": b""},
            "several devices",
        ),
        (
            builtin_config("identity").replace(
                "dims: [2] }\nparam", 'dims: [2] label_filename: "../x" }\nparam'
            ),
            {"1/x": b""},
            "invalid file path",
        ),
    ],
)
def test_a_model_that_cannot_load_is_unavailable_with_a_reason_that_is_safe_to_show(
    config: str, files: dict[str, bytes], problem: str, repository: Path, models: Executor
) -> None:
    write_model(repository, "m", config, files)
    error = error_of(models.manager.load("m"))
    assert isinstance(error, LoadFailed)
    assert problem in error.message
    assert set(states(models).values()) == {"UNAVAILABLE"}
    assert problem in reason(models, "m")
    assert str(repository) not in reason(models, "m")
    with pytest.raises(Unavailable, match="is unavailable"):
        models.catalog.find("m", next(iter(states(models)))[1])


def test_a_gpu_that_is_not_there_makes_the_model_unavailable(
    repository: Path, models: Executor, onnx_models: Any
) -> None:
    files = {"1/model.onnx": onnx_models.unary("Identity", ["b"])}
    write_model(repository, "m", "instance_group { kind: KIND_GPU }", files)
    assert "CUDAExecutionProvider" in error_of(models.manager.load("m")).message
    assert states(models) == {("m", "1"): "UNAVAILABLE"}


def test_a_configured_fallback_serves_and_shows_in_metric_state_and_configuration(
    repository: Path, models: Executor, registry: CollectorRegistry, onnx_models: Any
) -> None:
    files = {"1/model.onnx": onnx_models.unary("Identity", ["b"])}
    allow = 'parameters { key: "cpu_fallback" value: { string_value: "true" } }'
    write_model(repository, "m", f"instance_group {{ kind: KIND_GPU }} {allow}", files)
    load(models, "m")
    assert "runs on the CPU instead of a GPU" in announced(models, "m").reason
    config = ModelConfig.FromString(announced(models, "m").config)
    assert config.instance_group[0].Kind.Name(config.instance_group[0].kind) == "KIND_CPU"
    assert registry.get_sample_value("sits_executor_cpu_fallback", {"model": "m"}) == 1


def test_one_model_that_fails_keeps_no_other_from_loading(
    repository: Path, models: Executor
) -> None:
    write_model(repository, "bad", "nonsense")
    write_model(repository, "good", builtin_config("identity"))
    for future in models.manager.load_all():
        future.exception(TIMEOUT_S)
    assert states(models) == {("bad", "1"): "UNAVAILABLE", ("good", "1"): "READY"}


def test_a_folder_that_leads_out_of_the_repository_does_not_take_the_others_along(
    repository: Path, models: Executor, tmp_path: Path
) -> None:
    write_model(repository, "good", builtin_config("identity"))
    (tmp_path / "elsewhere" / "1").mkdir(parents=True)
    (repository / "out").symlink_to(tmp_path / "elsewhere")
    for future in models.manager.load_all():
        future.exception(TIMEOUT_S)
    assert states(models) == {("good", "1"): "READY", ("out", ""): "UNAVAILABLE"}
    assert reason(models, "out") == "folder of model 'out' leads out of the model repository"


def test_a_reload_that_fails_leaves_the_old_one_serving(repository: Path, models: Executor) -> None:
    folder = write_model(repository, "m", builtin_config("identity"))
    load(models, "m")
    old = models.catalog.find("m", "1")
    (folder / "config.pbtxt").write_text("nonsense")
    assert isinstance(error_of(models.manager.load("m")), LoadFailed)
    (folder / "config.pbtxt").write_text(builtin_config("unknown"))
    assert isinstance(error_of(models.manager.load("m")), LoadFailed)
    assert models.catalog.find("m", "1") is old
    assert states(models) == {("m", "1"): "READY"}


def test_a_reload_swaps_when_the_new_one_is_warm(repository: Path, models: Executor) -> None:
    folder = write_model(repository, "m", builtin_config("identity"))
    load(models, "m")
    old = models.catalog.find("m", "1")
    (folder / "2").mkdir()
    (folder / "config.pbtxt").write_text(builtin_config("row_sum", out_dims=[1]))
    load(models, "m")
    assert models.catalog.find("m", "").entry.version == "2"
    assert states(models) == {("m", "1"): "UNAVAILABLE", ("m", "2"): "READY"}
    assert old.queue.closed


def test_while_a_model_loads_others_are_found_and_it_says_loading(
    repository: Path, models: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(repository, "fast", builtin_config("identity"))
    write_model(repository, "slow", builtin_config("identity"))
    load(models, "fast")
    started, go_on = threading.Event(), threading.Event()
    real = choice.BACKENDS["builtin"]

    def slow_load(spec: Any) -> Any:
        started.set()
        assert go_on.wait(TIMEOUT_S)
        return real.load(spec)

    monkeypatch.setitem(choice.BACKENDS, "builtin", real._replace(load=slow_load))
    future = models.manager.load("slow")
    assert started.wait(TIMEOUT_S)
    assert states(models)[("slow", "1")] == "LOADING"
    assert models.catalog.find("fast", "1").entry.name == "fast"
    with pytest.raises(Unavailable, match="'slow' version '1' is loading"):
        models.catalog.find("slow", "1")
    go_on.set()
    future.result(TIMEOUT_S)
    assert states(models)[("slow", "1")] == "READY"


def test_what_nobody_foresaw_is_an_internal_error_without_paths(
    repository: Path, models: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_spec: Any) -> Any:
        raise OSError("/srv/secret/place is full")

    real = choice.BACKENDS["builtin"]
    monkeypatch.setitem(choice.BACKENDS, "builtin", real._replace(load=broken))
    write_model(repository, "m", builtin_config("identity"))
    error = error_of(models.manager.load("m"))
    assert isinstance(error, Internal)
    assert error.message == "failed to load 'm': OSError: <path> is full"


def test_unload_serves_no_more_and_can_be_loaded_again(repository: Path, models: Executor) -> None:
    write_model(repository, "m", builtin_config("identity"))
    load(models, "m")
    unload(models, "m")
    assert states(models) == {("m", "1"): "UNAVAILABLE"}
    assert reason(models, "m") == "unloaded"
    with pytest.raises(Unavailable):
        models.catalog.find("m", "")
    load(models, "m")
    assert states(models) == {("m", "1"): "READY"}


def test_unknown_names_are_refused_at_once(models: Executor) -> None:
    with pytest.raises(NotFound):
        models.manager.load("nobody")
    with pytest.raises(NotFound):
        models.manager.unload("nobody")
    with pytest.raises(InvalidArgument):
        models.manager.load("../secret")
    with pytest.raises(NotFound):
        models.catalog.find("nobody", "1")


def test_a_configuration_sent_with_the_call_wins_over_the_file(
    repository: Path, models: Executor
) -> None:
    write_model(repository, "m", builtin_config("identity", max_batch=8))
    sent = (
        '{"backend": "builtin", "max_batch_size": 3, '
        '"input": [{"name": "x", "data_type": "TYPE_FP32", "dims": ["2"]}], '
        '"output": [{"name": "y", "data_type": "TYPE_FP32", "dims": ["2"]}]}'
    )
    load(models, "m", sent)
    assert models.catalog.find("m", "1").contract.max_rows == 3
    load(models, "m")
    assert models.catalog.find("m", "1").contract.max_rows == 8


def test_files_sent_with_the_call_are_served_and_gone_after_the_unload(
    models: Executor, onnx_models: Any
) -> None:
    load(models, "new", "", {"1/model.onnx": onnx_models.unary("Neg", ["b"])})
    (upload,) = models.manager._uploads.values()
    folder = Path(upload._temporary.name)
    assert (folder / "1" / "model.onnx").exists()
    y = models.catalog.find("new", "1").backend.run({"x": np.ones(1, np.float32)}, {})["y"]
    assert y.tolist() == [-1]
    unload(models, "new")
    assert not folder.exists()


def test_files_that_do_not_load_leave_nothing_behind(
    models: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = set(tmp_path.iterdir())
    assert isinstance(error_of(models.manager.load("new", "", {"1/model.onnx": b"x"})), LoadFailed)
    with pytest.raises(InvalidArgument):
        models.manager.load("new", "", {"../evil": b"x"})
    with pytest.raises(InvalidArgument, match="at most"):
        models.manager.load("new", "", {"1/model.onnx": bytes(2 << 20)})
    assert set(tmp_path.iterdir()) == before


def test_the_listing_shows_models_that_were_never_loaded(
    repository: Path, models: Executor
) -> None:
    write_model(repository, "a", builtin_config("identity"))
    write_model(repository, "b", builtin_config("identity"))
    load(models, "b")
    listed = [(e.name, e.version, e.state) for e in models.manager.listing()]
    ready, unknown = ModelState.MODEL_STATE_READY, ModelState.MODEL_STATE_UNSPECIFIED
    assert listed == [("a", "", unknown), ("b", "1", ready)]


def test_every_change_raises_the_revision_and_is_told(repository: Path, models: Executor) -> None:
    told: list[int] = []
    models.catalog.changed = lambda: told.append(models.catalog.message().revision)
    write_model(repository, "m", builtin_config("identity"))
    load(models, "m")
    unload(models, "m")
    assert told == sorted(set(told))
    assert len(told) == 3


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once a backend is closed."""
    told = threading.Event()
    real = choice.BACKENDS["builtin"]

    def closing(spec: Any) -> Any:
        backend = real.load(spec)
        backend.close = told.set
        return backend

    monkeypatch.setitem(choice.BACKENDS, "builtin", real._replace(load=closing))
    return told


def test_the_backend_is_closed_after_its_last_batch(
    repository: Path, models: Executor, closed: threading.Event
) -> None:
    write_model(repository, "m", builtin_config("identity", instances=2))
    load(models, "m")
    assert not closed.is_set()
    unload(models, "m")
    assert closed.wait(TIMEOUT_S)


def test_a_failed_warm_up_closes_the_backend(
    repository: Path, models: Executor, closed: threading.Event
) -> None:
    warmup = (
        '\nmodel_warmup { name: "w" batch_size: 1 inputs { key: "x" value '
        "{ data_type: TYPE_FP32 dims: 2 zero_data: true } } }"
    )
    write_model(repository, "m", builtin_config("fail_on", value=0) + warmup)
    assert "warm-up 'w' failed" in error_of(models.manager.load("m")).message
    assert closed.is_set()


def test_loads_of_one_model_happen_one_after_the_other(
    repository: Path, models: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, most = [0], [0]
    lock = threading.Lock()
    real = choice.BACKENDS["builtin"]

    def counted(spec: Any) -> Any:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        backend = real.load(spec)
        with lock:
            running[0] -= 1
        return backend

    monkeypatch.setitem(choice.BACKENDS, "builtin", real._replace(load=counted))
    write_model(repository, "m", builtin_config("identity"))
    for future in [models.manager.load("m") for _ in range(6)]:
        future.result(TIMEOUT_S)
    assert most == [1]
    wait_until(lambda: len(models.catalog.loaded()) == 1)


def test_a_backend_without_a_signature_needs_a_full_configuration(
    repository: Path, models: Executor
) -> None:
    write_model(repository, "m", 'backend: "builtin"')
    with pytest.raises(LoadError):
        choice.choose(ModelConfig(backend="none"))
    assert "names no input" in error_of(models.manager.load("m")).message
