"""What a model returns is checked and packed: row-major, little-endian, its declared type."""

from typing import Any

import numpy as np
import pytest

from sits_core import datatypes
from sits_core.datatypes import NUMPY_TYPES
from sits_executor.contract import Contract, TensorContract
from sits_executor.results import BadResult, check, join, pack
from sits_protos.v1.common_pb2 import PayloadRef

X = np.arange(24, dtype=np.float32).reshape(4, 3, 2)


def contract(
    datatype: str = "FP32", dims: tuple[int, ...] = (3, 2), max_rows: int = 8, inner: Any = None
) -> Contract:
    return Contract("m", "1", max_rows, {}, (TensorContract("y", datatype, dims, inner),))


def inline(_length: int) -> None:
    return None


def packed(array: Any, own: Contract, request_rows: list[int]) -> Any:
    columns = check({"y": array}, own, sum(request_rows))
    return pack(columns, own, request_rows, inline)[0]


@pytest.mark.parametrize(
    "array",
    [
        X,
        np.asfortranarray(X),
        np.repeat(X, 2, axis=0)[::2],
        np.ascontiguousarray(X[::-1])[::-1],
        X.astype(">f4"),
        np.ascontiguousarray(X.transpose(2, 1, 0)).transpose(2, 1, 0),
        np.broadcast_to(X[:1], X.shape),
        np.stack([X, X], axis=-1)[..., 0],
    ],
    ids=["c", "fortran", "step", "negative", "big-endian", "transposed", "broadcast", "sliced"],
)
def test_any_memory_layout_arrives_with_equal_values(array: Any) -> None:
    tensor = packed(array, contract(), [4])
    back = datatypes.decode(tensor.inline, tensor.datatype, tuple(tensor.shape))
    np.testing.assert_array_equal(back, array)
    assert tensor.datatype == "FP32"


@pytest.mark.parametrize("array", [X, np.asfortranarray(X), X.astype(">f4")])
def test_any_memory_layout_arrives_through_shared_memory(array: Any) -> None:
    memory = bytearray(array.nbytes)
    reference = PayloadRef(pool="p", offset=64, length=array.nbytes, generation=3)
    columns = check({"y": array}, contract(), 4)
    (tensor,) = pack(columns, contract(), [4], lambda n: (memoryview(memory), reference))
    assert tensor.reference == reference
    np.testing.assert_array_equal(np.frombuffer(memory, "<f4").reshape(array.shape), array)


@pytest.mark.parametrize("datatype", NUMPY_TYPES)
def test_every_datatype_is_packed(datatype: str) -> None:
    array = np.array([[0, 1], [1, 0]]).astype(NUMPY_TYPES[datatype])
    tensor = packed(array, contract(datatype, (2,)), [2])
    assert tensor.inline == array.tobytes()
    memory = bytearray(array.nbytes)
    columns = check({"y": array}, contract(datatype, (2,)), 2)
    pack(columns, contract(datatype, (2,)), [2], lambda n: (memoryview(memory), PayloadRef()))
    assert bytes(memory) == array.tobytes()


def test_a_scalar_of_a_model_that_does_not_batch_is_packed() -> None:
    tensor = packed(np.float32(2.5), contract(dims=(), max_rows=0), [1])
    assert (list(tensor.shape), tensor.inline) == ([], np.float32(2.5).tobytes())


def test_bytes_say_how_many_belong_to_each_request() -> None:
    array = np.array([[b"a"], [b""], [b"\xff\0"]], object)
    tensor = packed(array, contract("BYTES", (1,)), [1, 2])
    assert list(tensor.request_bytes) == [5, 10]
    assert datatypes.decode_bytes(tensor.inline) == [b"a", b"", b"\xff\0"]


def test_bytes_of_a_model_that_does_not_batch_belong_to_its_one_request() -> None:
    array = np.array([b"a", b"bc"], object)
    tensor = packed(array, contract("BYTES", (2,), max_rows=0), [1])
    assert list(tensor.request_bytes) == [11]


@pytest.mark.parametrize(
    ("outputs", "problem"),
    [
        ({}, "output 'y' is missing"),
        ({"y": X[:3]}, r"shape \[3, 3, 2\], declared is \[4, 3, 2\]"),
        ({"y": X[..., :1]}, r"shape \[4, 3, 1\]"),
        ({"y": X[..., None]}, r"shape \[4, 3, 2, 1\]"),
        ({"y": np.float32(1)}, r"shape \[\]"),
        ({"y": X.astype(np.float64)}, "came as FP64, declared is FP32"),
        ({"y": X.astype(np.int32)}, "came as INT32"),
        ({"y": X.astype(complex)}, "came as complex128"),
        ({"y": X.astype(object)}, "came as Python objects"),
        ({"y": None}, "came as Python objects"),
    ],
)
def test_a_result_that_is_not_as_declared_is_refused(outputs: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadResult, match=problem):
        check(outputs, contract(), 4)


def test_numbers_are_no_bytes() -> None:
    """bytes(5) would be five zeros."""
    with pytest.raises(BadResult, match="Python objects"):
        check({"y": np.array([[5]], object)}, contract("BYTES", (1,)), 1)


def test_undeclared_outputs_are_left_out() -> None:
    assert len(check({"y": X, "debug": X}, contract(), 4)) == 1


def test_reshape_gives_clients_the_declared_shape() -> None:
    own = contract(dims=(6,), inner=(3, 2))
    assert check({"y": X}, own, 4)[0].shape == (4, 6)


def test_runs_that_do_not_fit_together_are_refused() -> None:
    own = contract(dims=(-1, 2))
    assert join([(X,), (X,)], own)[0].shape == (8, 3, 2)
    with pytest.raises(BadResult, match="other shapes"):
        join([(X,), (X[:, :2],)], own)
