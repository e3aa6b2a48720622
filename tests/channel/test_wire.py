"""Splitting a link message into head and body, and refusing what is none."""

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from sits_channel import wire
from sits_channel.wire import MalformedMessage, join, parse, split
from sits_protos.v1.common_pb2 import Tensor
from sits_protos.v1.link_pb2 import (
    BatchHeader,
    Cancel,
    Catalog,
    Credits,
    Hello,
    LinkMessage,
    Release,
    RequestHeader,
    RequestResult,
    ResultHeader,
)

HEADS: dict[int, tuple[str, Message]] = {
    wire.HELLO: ("hello", Hello(id="executor-1")),
    wire.CATALOG: ("catalog", Catalog(revision=7)),
    wire.CREDITS: ("credits", Credits()),
    wire.CANCEL: ("cancel", Cancel(batch_id=3, requests=[1])),
    wire.RELEASE: ("release", Release(instance="executor-1")),
    wire.BATCH: ("batch", BatchHeader(batch_id=9, model="m", rows=4)),
    wire.RESULT: ("result", ResultHeader(batch_id=9, requests=4)),
}
KINDS = st.sampled_from(list(HEADS))


@pytest.mark.parametrize("kind", HEADS)
def test_every_message_starts_with_its_head(kind: int) -> None:
    field, head = HEADS[kind]
    message = LinkMessage(**{field: head}).SerializeToString()
    assert split(message) == (kind, head.SerializeToString(), b"")


def test_the_body_stays_bytes_behind_the_head() -> None:
    head = BatchHeader(batch_id=9, model="m")
    tensor = Tensor(name="x", datatype="FP32", shape=[300], inline=bytes(1200))
    request = RequestHeader(id="r", rows=4)
    message = LinkMessage(batch=head, requests=[request], inputs=[tensor]).SerializeToString()
    parts = split(message)
    assert (parts.kind, BatchHeader.FromString(parts.head)) == (wire.BATCH, head)
    assert parse(parts.body) == LinkMessage(requests=[request], inputs=[tensor])


def test_a_new_head_before_an_old_body_is_a_whole_message() -> None:
    outputs = [Tensor(name="y", inline=b"1234")]
    message = LinkMessage(
        result=ResultHeader(batch_id=1), results=[RequestResult()], outputs=outputs
    )
    parts = split(message.SerializeToString())
    changed = join(parts.kind, ResultHeader(batch_id=70_000).SerializeToString(), parts.body)
    message.result.batch_id = 70_000
    assert parse(changed) == message


@given(KINDS, st.binary(max_size=5000), st.binary(max_size=100))
def test_split_undoes_join(kind: int, head: bytes, body: bytes) -> None:
    assert split(join(kind, head, body)) == (kind, head, body)


@pytest.mark.parametrize("length", [0, 1, 127, 128, 16_383, 16_384, 1 << 21])
def test_lengths_at_the_edges_of_their_encoding(length: int) -> None:
    assert split(join(wire.BATCH, bytes(length), b"body")) == (wire.BATCH, bytes(length), b"body")


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (b"", "empty message"),
        (b"\x00", "starts with tag 0"),
        (bytes([wire.BATCH << 3]), "starts with tag 64"),
        (bytes([6 << 3 | 2, 0]), "starts with tag 50"),
        (bytes([9 << 3 | 2, 0]), "starts with tag 74"),
        (b"\xff\x01\x00", "starts with tag 255"),
        (bytes([wire.BATCH << 3 | 2]), "ends inside a length"),
        (bytes([wire.BATCH << 3 | 2, 0x80]), "ends inside a length"),
        (bytes([wire.BATCH << 3 | 2, 5, 1, 2]), "head of 5 bytes in a message of 4"),
        (bytes([wire.BATCH << 3 | 2]) + b"\x80" * 10 + b"\x01", "longer than 10 bytes"),
        (bytes([wire.BATCH << 3 | 2]) + b"\xff" * 9 + b"\x7f", "head of .* bytes in a message"),
    ],
)
def test_what_is_no_link_message_is_refused(message: bytes, said: str) -> None:
    with pytest.raises(MalformedMessage, match=said):
        split(message)


@given(st.binary(max_size=200))
def test_random_bytes_are_split_without_loss_or_refused(data: bytes) -> None:
    try:
        parts = split(data)
    except MalformedMessage:
        return
    assert data.endswith(parts.head + bytes(parts.body))


@given(st.binary(max_size=200))
def test_random_bytes_are_parsed_or_refused(data: bytes) -> None:
    try:
        message = parse(data)
    except MalformedMessage:
        return
    assert parse(message.SerializeToString()) == message
