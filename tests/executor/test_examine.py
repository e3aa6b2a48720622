"""What would not load is found without loading it."""

from pathlib import Path
from typing import Any

import pytest

from sits_executor.repository import examine as examining
from sits_executor.repository.examine import Seen, examine


def write(root: Path, config: str, model: bytes = b"") -> Path:
    (root / "m" / "1").mkdir(parents=True)
    (root / "m" / "config.pbtxt").write_text(config)
    if model:
        (root / "m" / "1" / "model.onnx").write_bytes(model)
    return root


def test_a_model_and_a_configuration_that_fit_are_sound(tmp_path: Path, onnx_models: Any) -> None:
    root = write(tmp_path, "max_batch_size: 4", onnx_models.unary("Neg", ["b", 2]))
    assert examine(root, "m") == Seen("", opened=True)


def test_a_configuration_of_another_model_is_a_fault(tmp_path: Path, onnx_models: Any) -> None:
    config = 'input { name: "z" data_type: TYPE_FP32 dims: [ 2 ] }'
    seen = examine(write(tmp_path, config, onnx_models.unary("Neg", ["b", 2])), "m")
    assert "input 'z' of the configuration is not one of the model's: x" in seen.fault


def test_a_model_for_a_gpu_is_opened_on_the_cpu(tmp_path: Path, onnx_models: Any) -> None:
    root = write(tmp_path, "instance_group { kind: KIND_GPU }", onnx_models.unary("Neg", ["b", 2]))
    assert examine(root, "m") == Seen("", opened=True)


def test_a_large_model_is_not_opened(
    tmp_path: Path, onnx_models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examining, "MAX_OPENED_BYTES", 10)
    root = write(tmp_path, "", onnx_models.unary("Neg", ["b", 2]))
    assert examine(root, "m") == Seen("", opened=False)


def test_a_pipeline_is_looked_at_without_its_models(tmp_path: Path) -> None:
    seen = examine(write(tmp_path, 'platform: "ensemble"'), "m")
    assert seen.fault == "ensemble_scheduling has no step"


def test_what_nobody_foresaw_is_a_fault_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError("disk is on fire")

    monkeypatch.setattr(examining, "read_labels", broken)
    seen = examine(write(tmp_path, 'backend: "builtin"'), "m")
    assert seen.fault == "OSError: disk is on fire"
