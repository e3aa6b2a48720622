"""Lists of CPU and NUMA numbers in the forms that Linux, NVML and NCCL print."""

import re
from collections.abc import Iterable

from sits_topology.model import TopologyError

_LIST = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")
MAX_NUMBER = 65_535
"""Larger ones are a misread, and would cost memory when a range is spelled out."""


def is_list(text: str) -> bool:
    return _LIST.fullmatch(text) is not None


def parse_list(text: str) -> tuple[int, ...]:
    """`0-3,8` → (0, 1, 2, 3, 8); an empty text is an empty list."""
    text = text.strip()
    if not text:
        return ()
    if not is_list(text):
        raise TopologyError(f"expected a list such as 0-3,8, got {text[:80]!r}")
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers += _span(int(first), int(last or first), text)
        if len(numbers) > MAX_NUMBER:
            raise TopologyError(f"a list of more than {MAX_NUMBER} numbers: {text[:80]!r}")
    return tuple(numbers)


def _span(first: int, last: int, text: str) -> range:
    if first > last or last > MAX_NUMBER:
        raise TopologyError(f"expected ascending numbers up to {MAX_NUMBER}, got {text[:80]!r}")
    return range(first, last + 1)


def parse_mask(text: str) -> tuple[int, ...]:
    """`0000ff00,000000ff` (32-bit hexadecimal words, highest first) → positions of set bits."""
    if not re.fullmatch(r"([0-9a-fA-F]{1,8}(,|$)){0,2048}", text):
        raise TopologyError(f"expected 32-bit hexadecimal words, got {text[:80]!r}")
    words = [int(word, 16) for word in text.split(",") if word]
    return from_words(reversed(words), 32)


def from_words(words: Iterable[int], bits: int) -> tuple[int, ...]:
    """Positions of set bits in words of `bits` bits, lowest word first."""
    return tuple(
        place * bits + bit
        for place, word in enumerate(words)
        for bit in range(bits)
        if word >> bit & 1
    )
