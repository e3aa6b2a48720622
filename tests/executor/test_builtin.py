"""The models without files that tests and benchmarks use."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from sits_core import datatypes
from sits_core.datatypes import NUMPY_TYPES
from sits_executor.backends import builtin
from sits_executor.backends.base import LoadError, LoadSpec
from sits_executor.testing import builtin_config
from sits_protos.oip.model_config_pb2 import ModelConfig

X = np.arange(6, dtype=np.float32).reshape(3, 2)


def spec(function: str, gpu: int | None = None, **values: Any) -> LoadSpec:
    config = text_format.Parse(builtin_config(function, **values), ModelConfig())
    return LoadSpec("m", "1", Path(), "", config, 1, 1, gpu)


def run(function: str, x: Any = X, parameters: Any = None, **values: Any) -> Any:
    return builtin.load(spec(function, **values)).run({"x": x}, parameters or {})["y"]


@pytest.mark.parametrize("datatype", NUMPY_TYPES)
def test_identity_returns_every_datatype(datatype: str) -> None:
    x = np.ones((2, 2), NUMPY_TYPES[datatype])
    assert run("identity", x) is x


@pytest.mark.parametrize("layout", ["fortran", "strided", "reversed", "big_endian"])
def test_layouts_hold_equal_values_in_another_memory_order(layout: str) -> None:
    y = run("layout", layout=layout)
    np.testing.assert_array_equal(y, X)
    assert not y.flags["C_CONTIGUOUS"] or y.dtype.byteorder == ">"
    assert datatypes.encode(y) == datatypes.encode(X)


def test_row_sum_keeps_the_type() -> None:
    y = run("row_sum")
    assert (y.dtype, y.tolist()) == (X.dtype, [[1], [5], [9]])


def test_fail_on_raises_only_at_its_value() -> None:
    assert run("fail_on") is X
    with pytest.raises(ValueError, match="forbidden"):
        run("fail_on", np.array([[1, 666]], np.float32))
    with pytest.raises(ValueError, match=r"^ab") as caught:
        run("fail_on", np.array([[b"bad"]], object), value="bad", message="ab", message_bytes=40001)
    assert len(str(caught.value)) == 40001


def test_echo_parameter_shows_what_the_request_carried() -> None:
    assert run("echo_parameter", parameters={"k": 5}, key="k").tolist() == [[b"5"]] * 3
    assert run("echo_parameter", key="k").tolist() == [[b""]] * 3


def test_sleep_returns_its_input() -> None:
    assert run("sleep", sleep_ms=1, sleep_ms_per_row=0.1) is X


def test_wrong_results_are_wrong_in_one_way() -> None:
    assert run("wrong_rows").shape == (2, 2)
    assert run("wrong_type").dtype == np.float64
    assert run("wrong_shape").shape == (3, 2, 1)
    assert builtin.load(spec("no_output")).run({"x": X}, {}) == {}


@pytest.mark.parametrize(
    ("function", "values", "problem"),
    [
        ("nothing", {}, "unknown function 'nothing'"),
        ("layout", {"layout": "round"}, "unknown layout 'round'"),
        ("sleep", {"sleep_ms": "long"}, "expected a number"),
        ("identity", {"gpu": 0}, "CPU only"),
    ],
)
def test_a_wrong_configuration_fails_the_load(
    function: str, values: dict[str, Any], problem: str
) -> None:
    with pytest.raises(LoadError, match=problem):
        builtin.load(spec(function, **values))
