"""Any bytes as text that survives a round trip, for runtimes whose strings are Unicode.

Valid UTF-8 is passed on as the text it is, so models that look at it see the truth. Each
other byte becomes one code point of a private range, U+10FF80 to U+10FFFF, and turns back
into that byte. Text that itself uses this range is treated as not valid, byte by byte.
"""

import re

import numpy as np

from sits_core.datatypes import Array

_FIRST = 0x10FF80
_RANGE = re.compile("[\U0010ff80-\U0010ffff]")
# All code points from U+10F000 on start with these bytes; nothing else does.
_MARK = b"\xf4\x8f"
_SURROGATE = 0xDC80
"""What Python's "surrogateescape" makes of byte 0x80; the others follow."""


def to_text(raw: bytes) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return _moved(_escape_range(raw.decode("utf-8", "surrogateescape")), _SURROGATE, _FIRST)
    return _moved(_escape_range(text), _SURROGATE, _FIRST) if _MARK in raw else text


def to_bytes(text: str) -> bytes:
    raw = text.encode()
    if _MARK not in raw:
        return raw
    return _moved(text, _FIRST, _SURROGATE).encode("utf-8", "surrogateescape")


def texts(array: Array) -> Array:
    """An object array of `str` from one of `bytes`."""
    return _mapped(array, [to_text(element) for element in array.reshape(-1).tolist()])


def bytes_of(array: Array) -> Array:
    """An object array of `bytes` from one of `str`."""
    return _mapped(array, [to_bytes(element) for element in array.reshape(-1).tolist()])


def _mapped(array: Array, elements: list[str] | list[bytes]) -> Array:
    flat = np.empty(len(elements), dtype=object)
    flat[:] = elements
    return flat.reshape(array.shape)


def _escape_range(text: str) -> str:
    return _RANGE.sub(lambda m: m[0].encode().decode("ascii", "surrogateescape"), text)


def _moved(text: str, source: int, target: int) -> str:
    """`text` with the 128 code points from `source` on moved to `target`."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    inside = (points >= source) & (points < source + 128)
    moved = np.where(inside, points - source + target, points).astype("<u4")
    return moved.tobytes().decode("utf-32-le", "surrogatepass")
