"""What tells front doors whether an answer that they keep is still right."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from sits_executor.app import open_executor
from sits_executor.backends import builtin, choice
from sits_executor.backends.base import Backend, LoadSpec
from sits_executor.executor import Executor
from sits_executor.repository.manager import LoadFailed
from sits_executor.settings import ExecutorSettings
from sits_executor.testing import TIMEOUT_S, builtin_config, pipeline_config, write_model

CACHED = "\nresponse_cache { enable: true }\n"


@pytest.fixture(name="models")
def make_models(repository: Path, tmp_path: Path) -> Iterator[Executor]:
    with open_here(repository, tmp_path) as executor:
        yield executor


def open_here(repository: Path, shm: Path) -> Any:
    settings = ExecutorSettings(
        executor_model_repository=str(repository), executor_pool_bytes=0, shm_dir=str(shm)
    )
    return open_executor(settings, CollectorRegistry())


def load(models: Executor, name: str, *args: Any) -> bytes:
    models.manager.load(name, *args).result(TIMEOUT_S)
    found = models.catalog.find(name, "1")
    assert found.contract.content == found.entry.content
    return found.entry.content


def test_only_models_with_a_response_cache_are_read_for_it(
    repository: Path, models: Executor
) -> None:
    write_model(repository, "plain", builtin_config("identity"))
    assert load(models, "plain") == b""


def test_what_is_loaded_again_unchanged_has_the_same_content_here_and_elsewhere(
    repository: Path, models: Executor, tmp_path: Path
) -> None:
    write_model(repository, "m", builtin_config("identity") + CACHED, {"1/weights": b"one"})
    first = load(models, "m")
    assert len(first) == 16
    assert load(models, "m") == first
    with open_here(repository, tmp_path) as other:
        assert load(other, "m") == first


@pytest.mark.parametrize("file", ["1/weights", "1/deep/weights", "vocabulary.txt"])
def test_a_file_that_changed_makes_another_content(
    repository: Path, models: Executor, file: str
) -> None:
    files = {"1/weights": b"one", "1/deep/weights": b"two", "vocabulary.txt": b"three"}
    write_model(repository, "m", builtin_config("identity") + CACHED, files)
    first = load(models, "m")
    (repository / "m" / file).write_bytes(b"other")
    assert load(models, "m") != first


def test_another_configuration_makes_another_content(repository: Path, models: Executor) -> None:
    write_model(repository, "m", builtin_config("identity") + CACHED)
    first = load(models, "m")
    more = 'parameters { key: "note" value { string_value: "other" } }\n'
    config = builtin_config("identity") + CACHED + more
    (repository / "m" / "config.pbtxt").write_text(config)
    assert load(models, "m") != first


def test_other_versions_do_not_matter(repository: Path, models: Executor) -> None:
    config = builtin_config("identity") + CACHED + "version_policy { all {} }\n"
    write_model(repository, "m", config, {"1/weights": b"one", "2/weights": b"two"})
    first = load(models, "m")
    (repository / "m" / "2" / "weights").write_bytes(b"other")
    assert load(models, "m") == first


def test_links_that_lead_out_are_not_followed(
    repository: Path, models: Executor, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_bytes(b"one")
    write_model(repository, "m", builtin_config("identity") + CACHED, {"1/weights": b"one"})
    (repository / "m" / "1" / "out").symlink_to(tmp_path / "secret")
    first = load(models, "m")
    (tmp_path / "secret").write_bytes(b"other")
    assert load(models, "m") == first


def test_files_that_change_while_they_are_loaded_make_no_content(
    repository: Path, models: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_slowly(spec: LoadSpec) -> Backend:
        weights = spec.directory / "weights"
        weights.write_bytes(b"other")
        os.utime(weights, ns=(1, 1))
        return builtin.load(spec)

    slow = choice.Choice("slow", "", "", load_slowly)
    monkeypatch.setitem(choice.BACKENDS, "slow", slow)
    config = builtin_config("identity").replace('"builtin"', '"slow"')
    write_model(repository, "m", config + CACHED, {"1/weights": b"one"})
    assert load(models, "m") == b""


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("response_cache_ttl_s", "soon"),
        ("response_cache_ttl_s", "0"),
        ("response_cache_stale_s", "-1"),
        ("response_cache_stale_s", "nan"),
        ("response_cache_shared", "yes"),
    ],
)
def test_parameters_that_make_no_sense_are_refused_by_name(
    repository: Path, models: Executor, parameter: str, value: str
) -> None:
    wrong = f'parameters {{ key: "{parameter}" value {{ string_value: "{value}" }} }}\n'
    write_model(repository, "m", builtin_config("identity") + CACHED + wrong)
    with pytest.raises(LoadFailed, match=f"parameter '{parameter}'"):
        load(models, "m")


def pipeline(model: str) -> str:
    step = (
        f'{{ model_name: "{model}" model_version: -1 '
        'input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } }'
    )
    return pipeline_config([step]) + CACHED


def test_a_pipeline_changes_with_its_steps(repository: Path, models: Executor) -> None:
    write_model(repository, "step", builtin_config("identity") + CACHED, {"1/weights": b"one"})
    write_model(repository, "line", pipeline("step"), {"1/.keep": b""})
    load(models, "step")
    first = load(models, "line")
    assert len(first) == 16
    assert load(models, "line") == first
    (repository / "step" / "1" / "weights").write_bytes(b"other")
    load(models, "step")
    assert load(models, "line") != first


def test_a_pipeline_of_a_step_without_content_is_another_at_each_load(
    repository: Path, models: Executor
) -> None:
    write_model(repository, "step", builtin_config("identity"))
    write_model(repository, "line", pipeline("step"), {"1/.keep": b""})
    load(models, "step")
    assert load(models, "line") != load(models, "line")
