"""A request that begins like one before is what it would have been had it been read."""

from collections.abc import Callable

import pytest

from sits_preprocess.fake_engine import model
from sits_preprocess.oip import known
from sits_preprocess.oip.known import Beginnings, KnownDraft
from sits_preprocess.oip.reading import OipDraft, OipMessage
from sits_preprocess.oip.signature import Signature, signature_of
from sits_preprocess.shared_memory import Regions
from sits_protos.oip.grpc_service_pb2 import ModelInferRequest

NOTHING_SHARED = Regions(False, "/nowhere", max_read_bytes=0)


def signature(*dims: int) -> Signature:
    return signature_of(
        model("m", [("x", "UINT8", dims)], [("y", "UINT8", dims)], max_batch_size=8)
    )


SIGNATURE = signature(-1)


def request(data: bytes = b"abc") -> ModelInferRequest:
    message = ModelInferRequest(model_name="m", raw_input_contents=[data])
    message.inputs.add(name="x", datatype="UINT8", shape=[1, len(data)])
    return message


def read(beginnings: Beginnings, message: ModelInferRequest, against: Signature = SIGNATURE):
    draft = OipMessage(message.SerializeToString(), beginnings).read()
    return draft, draft.inputs(against, NOTHING_SHARED)


@pytest.mark.parametrize("size", [1, 3, 127, 128, 300, 20_000])
def test_only_the_data_is_taken_from_the_second_message(size: int) -> None:
    beginnings = Beginnings()
    first, inputs = read(beginnings, request(b"a" * size))
    second, again = read(beginnings, request(b"b" * size))
    assert (type(first), type(second)) == (OipDraft, KnownDraft)
    assert again == (inputs[0]._replace(data=b"b" * size),)
    assert (second.id, second.model, second.version) == ("", "m", "")


def test_data_of_another_length_is_another_beginning() -> None:
    beginnings = Beginnings()
    read(beginnings, request(b"abc"))
    draft, inputs = read(beginnings, request(b"abcd"))
    assert isinstance(draft, OipDraft)
    assert inputs[0].shape == (1, 4)


def test_a_replaced_model_is_asked_again() -> None:
    beginnings = Beginnings()
    read(beginnings, request())
    draft, inputs = read(beginnings, request(b"xyz"), signature(3))
    assert isinstance(draft, KnownDraft)
    assert inputs[0].data == b"xyz"
    with pytest.raises(Exception, match="unexpected shape"):
        read(beginnings, request(), signature(4))


def change(how: Callable[[ModelInferRequest], object]) -> ModelInferRequest:
    message = request()
    how(message)
    return message


def with_output(message: ModelInferRequest) -> None:
    message.outputs.add(name="y")


def with_id(message: ModelInferRequest) -> None:
    message.id = "7"


def with_parameter(message: ModelInferRequest) -> None:
    message.parameters["priority"].int64_param = 1


@pytest.mark.parametrize("how", [with_output, with_id, with_parameter])
def test_what_asks_for_more_is_always_read(how: Callable[[ModelInferRequest], object]) -> None:
    beginnings = Beginnings()
    for _ in range(2):
        assert isinstance(read(beginnings, change(how))[0], OipDraft)


def test_data_inside_of_another_field_is_not_taken_for_the_input() -> None:
    """A field that nobody knows, whose content looks like the data that stands before it."""
    message = request().SerializeToString()
    tail = b"\x3a\x03abc"
    assert message.endswith(tail)
    disguised = message + b"\xfa\x01\x05" + tail
    beginnings = Beginnings()
    for _ in range(2):
        draft = OipMessage(disguised, beginnings).read()
        assert draft.inputs(SIGNATURE, NOTHING_SHARED)[0].data == b"abc"
        assert isinstance(draft, OipDraft)


def test_no_more_than_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "MAX_KNOWN", 2)
    beginnings = Beginnings()
    for size in range(1, 6):
        read(beginnings, request(b"a" * size))
    assert repr(beginnings) == "<Beginnings of 1 requests>"
