"""The encoder's bytes are those of the message, whatever is in it."""

import random

import pytest

from sits_preprocess.oip import encoding
from sits_preprocess.oip.encoding import ResponseEncoder
from sits_preprocess.oip.outputs import RegionRange
from sits_preprocess.oip.result import Result
from sits_preprocess.oip.writing import response_of
from sits_preprocess.request import TensorData

SIZES = (0, 1, 127, 128, 129, 16_383, 16_384, 2_097_152)


def tensor(name: str, size: int) -> TensorData:
    return TensorData(name, "UINT8", (1, size), random.Random(size).randbytes(size))


@pytest.mark.parametrize("request_id", ["", "7", "ž" * 70, "x" * 300])
@pytest.mark.parametrize("size", SIZES)
def test_ids_and_tensors_of_all_sizes(request_id: str, size: int) -> None:
    result = Result(request_id, "m", "3", (tensor("a", size), tensor("b", 5)))
    encode = ResponseEncoder()
    wanted = response_of(result).SerializeToString()
    assert encode(result) == wanted
    assert encode(result) == wanted


def test_what_is_remembered_is_told_apart() -> None:
    encode = ResponseEncoder()
    base = Result("i", "m", "1", (tensor("a", 4),))
    for result in (
        base,
        base._replace(model="other"),
        base._replace(version="2"),
        base._replace(outputs=(tensor("b", 4),)),
        base._replace(outputs=(tensor("a", 5),)),
        base._replace(outputs=(tensor("a", 4)._replace(datatype="INT8"),)),
        base._replace(outputs=(tensor("a", 4)._replace(shape=(4, 1)),)),
        base._replace(outputs=(tensor("a", 4)._replace(data=memoryview(b"view")),)),
        base._replace(outputs=()),
        base._replace(parameters={"tokens": 3}),
        base._replace(places={"a": RegionRange("region", 8, 4)}),
        base,
    ):
        assert encode(result) == response_of(result).SerializeToString()


def test_endless_shapes_take_no_endless_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MAX_KNOWN", 8)
    encode = ResponseEncoder()
    for size in range(50):
        result = Result("", "m", "1", (tensor("a", size),))
        assert encode(result) == response_of(result).SerializeToString()
    assert repr(encode) == "<ResponseEncoder knows 2 of 8>"
