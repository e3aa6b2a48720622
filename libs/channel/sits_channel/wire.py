"""Splits a link message into its head and the bytes behind it, without parsing those.

The head is the first top-level field; `link.proto` says which fields lead.
"""

from functools import lru_cache
from typing import NamedTuple

from google.protobuf.message import DecodeError

from sits_protos.v1.link_pb2 import LinkMessage

HELLO, CATALOG, CREDITS, CANCEL, RELEASE, BATCH, RESULT = 1, 2, 3, 4, 5, 8, 12
_HEADS = frozenset((HELLO, CATALOG, CREDITS, CANCEL, RELEASE, BATCH, RESULT))
_MAX_VARINT_BYTES = 10


class MalformedMessage(ValueError):
    """Bytes that are not a link message."""


class Split(NamedTuple):
    """`kind` is the head's field number; `head` its bytes; `body` all that follows, a view of
    the message: it may be large and is only passed on."""

    kind: int
    head: bytes
    body: memoryview


def split(message: bytes) -> Split:
    """Raises `MalformedMessage` for anything that does not start with a head field."""
    if not message:
        raise MalformedMessage("empty message")
    tag = message[0]
    kind = tag >> 3
    if tag & 7 != 2 or kind not in _HEADS:
        raise MalformedMessage(f"message starts with tag {tag}, expected a head field")
    length, start = _varint(message, 1)
    end = start + length
    if end > len(message):
        raise MalformedMessage(f"head of {length} bytes in a message of {len(message)}")
    return Split(kind, message[start:end], memoryview(message)[end:])


def join(kind: int, head: bytes, body: bytes | memoryview = b"") -> bytes:
    """The inverse of `split`."""
    return b"".join((_lead(kind, len(head)), head, body))


def parse(message: bytes | memoryview) -> LinkMessage:
    """The whole message. Raises `MalformedMessage`."""
    try:
        return LinkMessage.FromString(message)  # type: ignore[arg-type]  # views are fine
    except DecodeError as error:
        raise MalformedMessage("not a link message") from error


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 7 * _MAX_VARINT_BYTES, 7):
        if position >= len(data):
            raise MalformedMessage("message ends inside a length")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise MalformedMessage("length longer than 10 bytes")


@lru_cache(maxsize=4096)
def _lead(kind: int, length: int) -> bytes:
    """Tag and length of a head."""
    out = bytearray((kind << 3 | 2,))
    while length > 0x7F:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out)
