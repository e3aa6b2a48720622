"""The demo judges answers by what is true, not by what the mesh says."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from magika import Magika

from sits_cli.demo import similarity, stages, throughput
from sits_cli.demo.content_types import ContentTypes, Guess, features
from sits_cli.demo.samples import all_samples, made_files, project_files
from sits_cli.demo.similarity import Pair, Similarity
from sits_cli.demo.throughput import Load, Throughput
from sits_core.waterfall import Span, build

ROOT = Path(__file__).resolve().parents[2]
FETCH = ROOT / "scripts" / "fetch_models.py"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's models, freshly made."""
    folder = tmp_path_factory.mktemp("models")
    assert "magika, minilm, mlp, mlp_unbatched" in fetch(folder)
    return folder


def fetch(folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, FETCH, folder], check=True, capture_output=True, text=True
    )
    return done.stdout


def test_models_once_fetched_are_left_alone(repository: Path) -> None:
    assert fetch(repository) == ""


def test_a_model_made_from_something_else_is_made_anew(repository: Path) -> None:
    (repository / "magika" / ".source").write_text("magika 0.9\n")
    (repository / "magika" / "stray").touch()
    assert fetch(repository).startswith("models: magika →")
    assert not (repository / "magika" / "stray").exists()


def test_the_network_is_the_same_on_every_machine(repository: Path) -> None:
    models = [repository / name / "1" / "model.onnx" for name in ("mlp", "mlp_unbatched")]
    assert models[0].read_bytes() == models[1].read_bytes()
    row = np.ones((1, throughput.WIDTH), np.float32)
    first = throughput.reference(models[0], row)[0, :2]
    assert first.tolist() == pytest.approx([0.7387, 1.3061], abs=1e-3)


def test_the_labels_are_as_many_as_the_scores(repository: Path) -> None:
    assert len((repository / "magika" / "labels.txt").read_text().split()) == 214


@pytest.mark.parametrize("data", [b"", b"  \n short", b"#!/bin/sh\n" * 500, bytes(range(256)) * 40])
def test_features_are_those_that_the_model_was_trained_on(data: bytes) -> None:
    theirs = Magika._extract_features_from_seekable(
        _Seekable(data), 1024, 0, 1024, 256, 4096, use_inputs_at_offsets=False
    )
    assert features(data)[0].tolist() == [*theirs.beg, *theirs.end]


class _Seekable:
    def __init__(self, data: bytes) -> None:
        self._data, self.size = data, len(data)

    def read_at(self, offset: int, size: int) -> bytes:
        return self._data[offset : offset + size]


def test_what_tools_keep_beside_the_project_is_no_sample(tmp_path: Path) -> None:
    for place in (".venv/lib/a.py", ".sits/bench/b.py", "c.py"):
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n" * 100)
    assert [sample.name for sample in project_files(tmp_path)] == ["c.py"]


def test_samples_are_of_many_kinds_and_some_are_the_projects_own() -> None:
    samples = all_samples(ROOT)
    assert len({sample.kind for sample in samples}) >= 12
    assert {"Makefile", "pyproject.toml"} & {sample.name for sample in samples}
    assert {sample.kind for sample in samples} >= {"python", "markdown", "toml", "elf", "zip"}


def test_made_files_are_the_same_every_time() -> None:
    assert list(made_files()) == list(made_files())


def guesses(right: int, wrong: int) -> ContentTypes:
    good, bad = Guess("a", "python", "python", 1.0), Guess("b", "python", "perl", 1.0)
    return ContentTypes((good,) * right + (bad,) * wrong)


def test_one_wrong_content_type_in_twenty_is_the_models_own() -> None:
    assert guesses(19, 1).right
    assert not guesses(18, 2).right
    assert not guesses(0, 0).right


def test_similarity_is_right_only_if_no_pair_is_out_of_order() -> None:
    pairs = [Pair("a", "b", True, 0.5), Pair("c", "d", True, 0.9), Pair("a", "d", False, 0.4)]
    assert Similarity(tuple(pairs)).right
    assert not Similarity((*pairs, Pair("c", "b", False, 0.6))).right


def test_throughput_is_right_only_if_every_answer_is() -> None:
    load = Load("mlp", 100.0, 300, 0, 0, 4.0)
    slow = replace(load, per_s=50.0)
    assert Throughput(load, slow).right
    assert Throughput(load, slow).ratio == 2.0
    for bad in (replace(load, wrong=1), replace(load, failed=1), replace(load, answered=0)):
        assert not Throughput(bad, slow).right
        assert not Throughput(load, bad).right


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(value) for value in range(1, 101)]
    assert stages.percentile(values, 0.5) == 50.0
    assert stages.percentile(values, 0.99) == 99.0
    assert stages.percentile([7.0], 0.99) == 7.0


def span(service: str, name: str, start: int, end: int) -> Span:
    return Span(service, f"{service}.{name}", b"t" * 16, name.encode(), b"", start, end)


def test_stages_come_in_the_order_of_a_requests_life() -> None:
    life = [("preprocess", "queue"), ("dispatcher", "receive"), ("executor", "infer"),
            ("dispatcher", "return"), ("preprocess", "answer")]  # fmt: skip
    found = [span(*stage, 0, 2) for stage in sorted(life)]
    assert [s.name for s in stages.summarize(found)] == [".".join(stage) for stage in life]


def test_a_trace_without_one_of_the_services_is_not_right() -> None:
    spans = [span(name, "x" + name, 0, 1) for name in sorted(stages.SERVICES)]
    assert stages.Stages((), build(b"t" * 16, spans)).right
    assert not stages.Stages((), build(b"t" * 16, spans[1:])).right


def test_embeddings_are_unit_vectors() -> None:
    vector = similarity.embedding(np.arange(12, dtype=np.float32).reshape(1, 3, 4))
    assert np.linalg.norm(vector) == pytest.approx(1.0)


@pytest.mark.mesh
def test_the_demo_is_right_and_says_so_as_json() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "demo.py", "--json"], capture_output=True, text=True
    )
    results = json.loads(done.stdout)
    assert done.returncode == 0, results["verdicts"]
    assert all(results["verdicts"].values())
    assert results["content_types"]["right"] >= 0.95 * results["content_types"]["of"]
