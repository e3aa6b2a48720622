"""What a slot looks like in shared memory: a header of 64 bytes, then the data.

The memory order that readers rely on is the one of the message that carries the
reference. The generation tells them about slots that were taken back too early.
"""

import mmap
import struct
from typing import Final, NamedTuple

from sits_channel.pool_files import PAGE_BYTES

HEADER_BYTES: Final = 64

# Native order and alignment: each field is one aligned load or store, never torn bytes.
_HEADER = struct.Struct("@QQQQQIIII8x")
_CLAIM = struct.Struct("@QQQ")
_CLAIM_AT = 8
_GENERATION = struct.Struct("@Q")
_GENERATION_AT = 24


class SlotHeader(NamedTuple):
    """`offset` counts from the start of the file to the data, not to this header.

    Names are CRC-32 of their UTF-8 text; 0 = none, or more than one in the slot.
    """

    req_id: int
    offset: int
    length: int
    generation: int
    allocated_unix_ns: int
    tenant: int = 0
    priority: int = 0
    holder: int = 0
    reserved: int = 0


class Claim(NamedTuple):
    """What a header must say for a reference to be good."""

    offset: int
    length: int
    generation: int


def pages_for(length: int) -> int:
    return -(-(length + HEADER_BYTES) // PAGE_BYTES)


def data_offset(page: int) -> int:
    """Where the data of a slot begins whose first page is `page`; page 0 is the file's own."""
    return (page + 1) * PAGE_BYTES + HEADER_BYTES


def within(offset: int, length: int, file_bytes: int) -> bool:
    """Whether there can be such a slot at all."""
    in_first_page = offset % PAGE_BYTES == HEADER_BYTES and offset > PAGE_BYTES
    return in_first_page and length <= file_bytes - offset


def write_header(memory: memoryview, header: SlotHeader) -> None:
    _HEADER.pack_into(memory, header.offset - HEADER_BYTES, *header)


def read_header(memory: memoryview, offset: int) -> SlotHeader:
    return SlotHeader(*_HEADER.unpack_from(memory, offset - HEADER_BYTES))


def read_claim(memory: memoryview | mmap.mmap, offset: int) -> Claim:
    return Claim(*_CLAIM.unpack_from(memory, offset - HEADER_BYTES + _CLAIM_AT))


def write_generation(memory: memoryview, offset: int, generation: int) -> None:
    _GENERATION.pack_into(memory, offset - HEADER_BYTES + _GENERATION_AT, generation)
