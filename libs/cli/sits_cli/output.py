"""What the command prints: tables for people, JSON for programs, the same without a terminal."""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

PIPED_WIDTH = 1_000_000
"""Without a terminal nothing is folded, so that lines can be searched and cut."""


def console(*, stderr: bool = False) -> Console:
    """A fresh console on the present stdout or stderr."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PIPED_WIDTH
    return Console(file=stream, width=width, highlight=False)


def say(text: str = "") -> None:
    """One line for the reader; `[bold]` and the like are markup, see `literal`."""
    console().print(text, soft_wrap=True)


literal = escape
"""Text of others, safe inside markup."""


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False), flush=True)


def print_json_line(value: object) -> None:
    """For commands that report while they run: one object a line."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


@dataclass(frozen=True, slots=True)
class Column:
    """`fixed`: never narrowed. `cut`: one line, shortened where the terminal ends."""

    title: str
    right: bool = False
    fixed: bool = False
    cut: bool = False


def table(columns: Sequence[Column | str], rows: Iterable[Sequence[str | Text]]) -> Table:
    """Aligned columns without lines. Cells are shown as they are, never as markup."""
    specs = [column if isinstance(column, Column) else Column(column) for column in columns]
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for spec in specs:
        made.add_column(
            spec.title,
            justify="right" if spec.right else "left",
            overflow="fold",
            no_wrap=spec.fixed,
        )
    for row in rows:
        made.add_row(*(_cell(cell, spec) for cell, spec in zip(row, specs, strict=True)))
    return made


def _cell(cell: str | Text, spec: Column) -> Text:
    text = Text(cell) if isinstance(cell, str) else cell
    if spec.cut:
        text.no_wrap, text.overflow = True, "ellipsis"
    return text


def print_table(columns: Sequence[Column | str], rows: Iterable[Sequence[str | Text]]) -> None:
    print_drawn(table(columns, rows))


def print_drawn(drawn: RenderableType, out: Console | None = None) -> None:
    """A table, or what holds some. Without a terminal, lines end where their text does."""
    out = out or console()
    if out.file.isatty():
        out.print(drawn)
        return
    with out.capture() as captured:
        out.print(drawn)
    lines = captured.get().rstrip("\n").split("\n")
    print(*map(str.rstrip, lines), sep="\n", file=out.file, flush=True)


def good(text: str) -> Text:
    return Text(text, style="green")


def bad(text: str) -> Text:
    return Text(text, style="bold red")


def dim(text: str) -> Text:
    return Text(text, style="dim")


def count(number: int, noun: str) -> str:
    """`1 executor`, `2 executors`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def duration(seconds: float) -> str:
    """Three significant digits with a fitting unit: 812 ns, 41.2 µs, 3.21 ms, 1.50 s, 4 min."""
    if seconds >= 90:
        return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{_three_digits(seconds / size)} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def size(count: int) -> str:
    """Bytes with a binary unit: 640 B, 12.0 KiB, 1.50 GiB."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{count} B" if unit == "B" else f"{_three_digits(value)} {unit}"


def _three_digits(value: float) -> str:
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
