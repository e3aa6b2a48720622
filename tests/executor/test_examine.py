"""What would not load is found without loading it."""

from pathlib import Path
from typing import Any

import pytest

from sits_executor.backends import onnx_cuda
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


GPU = "instance_group { kind: KIND_GPU }"


def test_a_model_for_a_gpu_is_not_opened_on_the_cpu(
    tmp_path: Path, onnx_models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its operators may be a GPU's only."""
    monkeypatch.setattr(
        examining.onnxruntime, "get_available_providers", lambda: [onnx_cuda.PROVIDER]
    )
    root = write(tmp_path, GPU, onnx_models.unary("Neg", ["b", 2]))
    assert examine(root, "m") == Seen("", opened=False)


def test_a_model_for_a_gpu_needs_an_onnx_runtime_that_has_one(
    tmp_path: Path, onnx_models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examining.onnxruntime, "get_available_providers", lambda: ["CPU"])
    model = onnx_models.unary("Neg", ["b", 2])
    assert "has no CUDAExecutionProvider" in examine(write(tmp_path / "a", GPU, model), "m").fault
    may = 'parameters { key: "cpu_fallback" value { string_value: "true" } }'
    assert examine(write(tmp_path / "b", GPU + may, model), "m") == Seen("", opened=False)


def test_a_large_model_is_not_opened(
    tmp_path: Path, onnx_models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examining, "MAX_OPENED_BYTES", 10)
    root = write(tmp_path, "", onnx_models.unary("Neg", ["b", 2]))
    assert examine(root, "m") == Seen("", opened=False)


def test_a_pipeline_is_looked_at_without_its_models(tmp_path: Path) -> None:
    seen = examine(write(tmp_path, 'platform: "ensemble"'), "m")
    assert seen.fault == "ensemble_scheduling has no step"


PIPELINE = """
platform: "ensemble"
input { name: "X" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] }
ensemble_scheduling {
  step { model_name: "m" model_version: -1
         input_map { key: "x" value: "X" } output_map { key: "y" value: "Y" } }
}
"""


@pytest.mark.parametrize(
    ("config", "model", "fault"),
    [
        (None, "", "step 1 (model 'm'): model 'm' is not in the model repository"),
        ("", "broken", "step 1 (model 'm'): InvalidProtobuf"),
        ("", "sound", ""),
    ],
)
def test_a_pipeline_needs_its_steps(
    tmp_path: Path, onnx_models: Any, config: str | None, model: str, fault: str
) -> None:
    if config is not None:
        sound = onnx_models.unary("Neg", ["b", 2])
        write(tmp_path, config, sound if model == "sound" else b"broken")
    (tmp_path / "p" / "1").mkdir(parents=True)
    (tmp_path / "p" / "config.pbtxt").write_text(PIPELINE)
    seen = examine(tmp_path, "p")
    assert not seen.opened
    assert fault in seen.fault
    assert bool(seen.fault) == bool(fault)


def test_what_nobody_foresaw_is_a_fault_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError("disk is on fire")

    monkeypatch.setattr(examining, "read_labels", broken)
    seen = examine(write(tmp_path, 'backend: "builtin"'), "m")
    assert seen.fault == "OSError: disk is on fire"
