"""A model has run before it is announced."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from sits_core.datatypes import NUMPY_TYPES
from sits_executor.backends.base import LoadError
from sits_executor.contract import Contract, TensorContract
from sits_executor.repository.layout import ModelFolder
from sits_executor.warmup import warm_up
from sits_protos.oip.model_config_pb2 import ModelConfig


class Recorder:
    signature = None
    fallback = ""

    def __init__(self, error: Exception | None = None) -> None:
        self.runs: list[dict[str, Any]] = []
        self._error = error

    def run(self, inputs: Any, parameters: Any) -> Any:
        self.runs.append(dict(inputs))
        if self._error:
            raise self._error
        return {}

    def close(self) -> None:
        return None


def contract(*dims: int, datatype: str = "FP32", max_rows: int = 8, inner: Any = None) -> Contract:
    tensor = TensorContract("x", datatype, dims, inner)
    return Contract("m", "1", max_rows, {"x": tensor}, ())


def warmed(
    own: Contract, text: str = "", folder: Path = Path(), error: Exception | None = None
) -> Recorder:
    backend = Recorder(error)
    config = text_format.Parse(text, ModelConfig())
    warm_up(backend, own, config, ModelFolder("m", folder, folder))
    return backend


def sample(body: str, batch_size: int = 2, count: int = 0) -> str:
    return (
        f'model_warmup {{ name: "w" batch_size: {batch_size} count: {count} '
        f'inputs {{ key: "x" value {{ {body} }} }} }}'
    )


def test_by_default_one_row_and_then_all_rows_of_zeros() -> None:
    shapes = [run["x"].shape for run in warmed(contract(3)).runs]
    assert shapes == [(1, 3), (8, 3)]


def test_variable_sizes_are_tried_once_and_small() -> None:
    assert [run["x"].shape for run in warmed(contract(-1, 3)).runs] == [(1, 1, 3)]
    assert [run["x"].shape for run in warmed(contract(-1, max_rows=0)).runs] == [(1,)]
    assert [run["x"].shape for run in warmed(contract(4, inner=(2, 2), max_rows=1)).runs] == [
        (1, 2, 2)
    ]


@pytest.mark.parametrize("datatype", [*NUMPY_TYPES, "BYTES"])
def test_zeros_of_every_datatype(datatype: str) -> None:
    x = warmed(contract(2, datatype=datatype)).runs[0]["x"]
    assert x.dtype == NUMPY_TYPES.get(datatype, np.dtype(object))
    assert not any(x.reshape(-1).tolist())


def test_zeros_that_a_model_does_not_like_do_not_fail_the_load() -> None:
    assert len(warmed(contract(3), error=ValueError("illegal")).runs) == 1


def test_a_configured_warm_up_that_fails_fails_the_load() -> None:
    text = sample("data_type: TYPE_FP32 dims: 3 zero_data: true")
    with pytest.raises(LoadError, match="warm-up 'w' failed: ValueError: no"):
        warmed(contract(3), text, error=ValueError("no"))


def test_a_configured_warm_up_runs_as_often_as_asked_and_in_place_of_the_default() -> None:
    text = sample("data_type: TYPE_FP32 dims: 3 random_data: true", count=3)
    runs = warmed(contract(-1), text).runs
    assert [run["x"].shape for run in runs] == [(2, 3)] * 3


def test_data_comes_from_a_file_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "x.bin").write_bytes(np.arange(6, dtype=np.float32).tobytes())
    text = sample('data_type: TYPE_FP32 dims: 3 input_data_file: "x.bin"')
    assert warmed(contract(3), text, tmp_path).runs[0]["x"].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ('data_type: TYPE_FP32 dims: 3 input_data_file: "none"', "no file 'warmup/none'"),
        ('data_type: TYPE_FP32 dims: 3 input_data_file: "../../etc"', "invalid file path"),
        ('data_type: TYPE_FP32 dims: 3 input_data_file: "short"', "does not hold"),
        ("data_type: TYPE_FP64 dims: 3 zero_data: true", "must be FP32"),
        ("data_type: TYPE_FP32 dims: 4 zero_data: true", r"dims \[4\], expected \[3\]"),
        ("data_type: TYPE_FP32 dims: -1 zero_data: true", "illegal dims"),
        ("data_type: TYPE_FP32 dims: 1099511627776 zero_data: true", "illegal dims"),
    ],
)
def test_a_warm_up_that_does_not_fit_the_model_fails_the_load(
    body: str, problem: str, tmp_path: Path
) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "short").write_bytes(b"abc")
    with pytest.raises(LoadError, match=problem):
        warmed(contract(3), sample(body), tmp_path)


def test_a_warm_up_for_another_input_fails_the_load() -> None:
    text = sample("data_type: TYPE_FP32 dims: 3 zero_data: true").replace('key: "x"', 'key: "z"')
    with pytest.raises(LoadError, match="names input 'z'"):
        warmed(contract(3), text)
