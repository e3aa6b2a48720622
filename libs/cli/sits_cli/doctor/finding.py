"""What a check found, and what to do about it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """A problem keeps the mesh from working; a warning will bite some day; a note is neither."""

    GOOD = "good"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """`do` is empty when nothing has to be done."""

    area: str
    level: Level
    text: str
    do: str = ""


Environ = Mapping[str, str]
Check = Callable[[Environ], Iterator[Finding]]


def good(area: str, text: str) -> Finding:
    return Finding(area, Level.GOOD, text)


def note(area: str, text: str, do: str = "") -> Finding:
    return Finding(area, Level.NOTE, text, do)


def warning(area: str, text: str, do: str) -> Finding:
    return Finding(area, Level.WARNING, text, do)


def problem(area: str, text: str, do: str) -> Finding:
    return Finding(area, Level.PROBLEM, text, do)
