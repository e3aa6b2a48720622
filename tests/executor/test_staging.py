"""Columns become arrays, or the batch is refused with what was expected and what came."""

import struct
from typing import Any

import numpy as np
import pytest

from sits_core.datatypes import NUMPY_TYPES
from sits_core.errors import InvalidArgument
from sits_executor.batch import Span
from sits_executor.contract import Contract, TensorContract
from sits_executor.staging import select, stage
from sits_executor.testing import batch
from sits_protos.v1.common_pb2 import PayloadRef, Tensor


def contract(
    *, datatype: str = "FP32", dims: tuple[int, ...] = (2,), max_rows: int = 8, **more: Any
) -> Contract:
    x = TensorContract("x", datatype, dims, more.pop("inner", None))
    extra = {"o": TensorContract("o", "FP32", (1,), None, optional=True)}
    return Contract("m", "1", max_rows, {"x": x, **extra}, ())


def no_pool(_ref: PayloadRef) -> memoryview:
    raise AssertionError("nothing is in shared memory")


def staged(tensor: Tensor, own: Contract, rows: int) -> np.ndarray[Any, Any]:
    return stage([tensor], own, rows, no_pool)["x"]


def tensor(**fields: Any) -> Tensor:
    known = {"name": "x", "datatype": "FP32", "shape": [1, 2], "inline": bytes(8)}
    return Tensor(**(known | fields))


@pytest.mark.parametrize("datatype", NUMPY_TYPES)
def test_every_datatype_is_read(datatype: str) -> None:
    x = np.array([[0, 1], [1, 0]]).astype(NUMPY_TYPES[datatype])
    message = batch(1, "m", [x])
    array = staged(message.inputs[0], contract(datatype=datatype), 2)
    assert array.dtype == x.dtype
    assert array.tobytes() == x.tobytes()


def test_payloads_in_shared_memory_are_read_in_place() -> None:
    memory = bytearray(np.ones(2, np.float32).tobytes())
    given = Tensor(name="x", datatype="FP32", shape=[1, 2], reference=PayloadRef(pool="p"))
    array = stage([given], contract(), 1, lambda ref: memoryview(memory))["x"]
    memory[:4] = struct.pack("<f", 5.0)
    assert array.tolist() == [[5.0, 1.0]]


@pytest.mark.parametrize(
    ("given", "rows", "problem"),
    [
        (tensor(name="z"), 1, "'z' is not one of the model's"),
        (tensor(datatype="FP64"), 1, "'x' is FP64, model expects FP32"),
        (tensor(datatype="nonsense"), 1, "'x' is nonsense"),
        (tensor(shape=[1, 3], inline=bytes(12)), 1, r"shape \[1, 3\], expected \[1, 2\]"),
        (tensor(shape=[2]), 2, r"shape \[2\], expected \[2, 2\]"),
        (tensor(shape=[]), 1, r"shape \[\]"),
        (tensor(shape=[2, 2], inline=bytes(16)), 1, r"shape \[2, 2\], expected \[1, 2\]"),
        (tensor(inline=bytes(7)), 1, "needs 8 bytes, got 7"),
        (tensor(inline=b""), 1, "needs 8 bytes, got 0"),
        (tensor(shape=[9, 2], inline=bytes(72)), 9, "takes at most 8"),
        (Tensor(name="o", datatype="FP32", shape=[1, 1], inline=bytes(4)), 1, "'x' of model"),
    ],
)
def test_a_column_that_does_not_fit_is_refused(given: Tensor, rows: int, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        stage([given], contract(), rows, no_pool)


def test_a_column_that_comes_twice_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="came twice"):
        stage([tensor(), tensor()], contract(), 1, no_pool)


@pytest.mark.parametrize("shape", [[1 << 32, 1 << 32], [1 << 62, 4], [-1, -2], [-1]])
def test_sizes_that_wrap_round_or_are_negative_allocate_nothing(shape: list[int]) -> None:
    own = contract(dims=(-1,) * len(shape), max_rows=0)
    with pytest.raises(InvalidArgument, match=r"needs|negative"):
        staged(tensor(shape=shape), own, 1)
    with pytest.raises(InvalidArgument, match=r"needs|negative|incomplete"):
        staged(
            tensor(shape=shape, datatype="BYTES"),
            contract(datatype="BYTES", dims=own.inputs["x"].dims, max_rows=0),
            1,
        )


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\1\0\0", "incomplete string length"),
        (b"\5\0\0\0ab", "incomplete string data"),
        (b"\0\0\0\0", "needs 2 elements, got 1"),
        (b"\0\0\0\0" * 3, "needs 2 elements, got 3"),
        (b"\xff\xff\xff\xff", "incomplete string data"),
    ],
)
def test_bytes_that_do_not_add_up_are_refused(data: bytes, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        staged(tensor(datatype="BYTES", inline=data), contract(datatype="BYTES"), 1)


def test_a_model_that_does_not_batch_takes_literal_shapes() -> None:
    own = contract(dims=(1, 2), max_rows=0)
    assert staged(tensor(), own, 1).shape == (1, 2)
    scalar = contract(dims=(), max_rows=0)
    assert staged(tensor(shape=[], inline=bytes(4)), scalar, 1).shape == ()


def test_reshape_changes_what_the_model_sees() -> None:
    own = contract(dims=(-1, 4), inner=(2, -1, 2))
    data = np.arange(12, dtype=np.float32)
    given = tensor(shape=[1, 3, 4], inline=data.tobytes())
    assert staged(given, own, 1).shape == (1, 2, 3, 2)


def test_selected_rows_are_those_and_only_those() -> None:
    x = {"x": np.arange(5)}
    assert select(x, [Span(0, 2), Span(2, 5)], 5) is x
    assert select(x, [Span(1, 3)], 5)["x"].tolist() == [1, 2]
    assert select(x, [Span(0, 1), Span(3, 5)], 5)["x"].tolist() == [0, 3, 4]
