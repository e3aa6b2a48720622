"""Bytes survive runtimes whose strings are Unicode."""

import random

import pytest

from sits_executor.backends.text import to_bytes, to_text

EDGES = [
    b"",
    b"\0",
    b"\xff\xfe",
    b"\xff\xd8\xff\xe0\0\x10JFIF\0",
    "é日本\U0001f600".encode(),
    "\U0010ff80 and \U0010ffff".encode(),
    "\U0010f000\U0010ff7f".encode(),
    "\U0010ff80".encode() + b"\x80",
    b"\xf4\x8f\xbe",
    b"\xed\xb2\x80",  # a surrogate, which is not UTF-8
    bytes(range(256)),
]


@pytest.mark.parametrize("raw", EDGES)
def test_any_bytes_come_back(raw: bytes) -> None:
    text = to_text(raw)
    assert text.encode().decode() == text, "a runtime must be able to encode it"
    assert to_bytes(text) == raw


def test_random_bytes_come_back() -> None:
    rng = random.Random(1)
    pieces = [*EDGES, b"a", "é".encode()]
    for _ in range(2000):
        raw = b"".join(rng.choices(pieces, k=3)) + rng.randbytes(rng.randrange(8))
        assert to_bytes(to_text(raw)) == raw


def test_valid_text_is_seen_as_the_text_it_is() -> None:
    assert to_text("é日本".encode()) == "é日本"


def test_a_large_random_value_comes_back() -> None:
    raw = random.Random(2).randbytes(1 << 20)
    assert to_bytes(to_text(raw)) == raw
