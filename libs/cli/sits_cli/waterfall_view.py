"""Draws a waterfall: one line a stage, bars on one time axis."""

from rich.console import Console, Group, RenderableType
from rich.text import Text

from sits_cli.output import Column, dim, duration, table
from sits_core.waterfall import Row, RowKind, Waterfall

MAX_BAR, MIN_BAR = 40, 12
BESIDES_BAR = 62
"""Columns that everything but the bar takes, roughly."""
FULL, EIGHTHS = "█", " ▏▎▍▌▋▊▉"
STYLES = {"preprocess": "cyan", "dispatcher": "yellow", "executor": "green", "topology": "magenta"}
OF_ALL = ("model", "version", "tenant")
"""Attributes of the whole request: they stand in the headline."""


def bar_width(console: Console) -> int:
    return max(MIN_BAR, min(MAX_BAR, console.width - BESIDES_BAR))


def draw(waterfall: Waterfall, width: int = MAX_BAR) -> RenderableType:
    columns: tuple[Column | str, ...] = (
        Column("service", fixed=True), Column("stage", fixed=True), Column("time", fixed=True),
        Column("starts at", right=True, fixed=True), Column("takes", right=True, fixed=True),
        Column("", cut=True),
    )  # fmt: skip
    told = {key: value for row in waterfall.rows[:1] for key, value in _of_all(row)}
    rows = [_cells(row, waterfall.total_ns, width, told) for row in waterfall.rows]
    return Group(_headline(waterfall), Text(), table(columns, rows), Text(), _summary(waterfall))


def bar(start: float, length: float, width: int) -> str:
    """`start` and `length` as shares of the whole; never invisible, never past the edge."""
    eighths = max(1, round(min(length, 1.0) * width * 8))
    offset = min(int(start * width), width - 1)
    eighths = min(eighths, (width - offset) * 8)
    rest = EIGHTHS[eighths % 8].strip()
    return (" " * offset + FULL * (eighths // 8) + rest).ljust(width)


def _cells(row: Row, total_ns: int, width: int, told: dict[str, str]) -> list[str | Text]:
    travel = row.kind is RowKind.TRAVEL
    style = "dim" if travel else STYLES.get(row.service, "")
    return [
        Text("" if travel else row.service, style=style),
        Text(_stage(row), style="dim" if travel else ""),
        _time(row, total_ns, width, style),
        _offset(row.start_ns),
        duration(row.duration_ns / 1e9),
        _details(row, told),
    ]


def _stage(row: Row) -> str:
    name = row.name.partition(".")[2] or row.name
    return "  " * row.depth + name + (" (linked)" if row.kind is RowKind.LINKED else "")


def _time(row: Row, total_ns: int, width: int, style: str) -> Text:
    if row.start_ns + row.duration_ns < 0:
        return dim(f"◂ {duration(-row.start_ns / 1e9)} before".ljust(width))
    if total_ns <= 0 or row.start_ns > total_ns:
        return dim("after ▸".rjust(width))
    start = max(row.start_ns, 0)
    length = row.duration_ns + min(row.start_ns, 0)
    drawn = bar(start / total_ns, length / total_ns, width)
    return Text(drawn.replace(FULL, "░") if style == "dim" else drawn, style=style)


def _offset(start_ns: int) -> str:
    return f"-{duration(-start_ns / 1e9)}" if start_ns < 0 else duration(start_ns / 1e9)


def _details(row: Row, told: dict[str, str]) -> Text:
    """Its error, or the attributes that no line above has told already; `told` grows."""
    if row.error:
        return Text(row.error, style="bold red")
    news = {key: value for key, value in row.attributes.items() if told.get(key) != value}
    told.update(news)
    return dim(" ".join(f"{key}={value}" for key, value in sorted(news.items())))


def _of_all(row: Row) -> list[tuple[str, str]]:
    return [(key, row.attributes[key]) for key in OF_ALL if key in row.attributes]


def _headline(waterfall: Waterfall) -> Text:
    what = "  ".join(f"{key} {value}" for row in waterfall.rows[:1] for key, value in _of_all(row))
    spans = sum(row.kind is not RowKind.TRAVEL for row in waterfall.rows)
    return Text.assemble(
        "trace ", (waterfall.trace_id.hex(), "bold"), f"\n{what}  " if what else "\n",
        "total ", (duration(waterfall.total_ns / 1e9), "bold"),
        f"  {spans} spans of {len(waterfall.services)} services",
    )  # fmt: skip


def _summary(waterfall: Waterfall) -> Text:
    total_ns = waterfall.total_ns or 1
    return Text(
        f"{waterfall.stage_ns / total_ns:.1%} of the total in stages, "
        f"{waterfall.travel_ns / total_ns:.1%} between services, "
        f"{waterfall.rest_ns / total_ns:.1%} unaccounted for."
    )
