"""Draws a waterfall: one line a stage, bars on one time axis."""

from rich.console import Group, RenderableType
from rich.text import Text

from sits_cli.output import Column, dim, duration, literal, table
from sits_cli.waterfall import Row, Waterfall

BAR_WIDTH = 40
FULL, EIGHTHS = "█", " ▏▎▍▌▋▊▉"
STYLES = {"preprocess": "cyan", "dispatcher": "yellow", "executor": "green", "topology": "magenta"}


def draw(waterfall: Waterfall, width: int = BAR_WIDTH) -> RenderableType:
    columns: tuple[Column | str, ...] = (
        "service", "stage", "time", Column("starts at", right=True), Column("takes", right=True), ""
    )  # fmt: skip
    rows = [_cells(row, waterfall.total_ns, width) for row in waterfall.rows]
    return Group(_headline(waterfall), Text(), table(columns, rows), Text(), _summary(waterfall))


def bar(start: float, length: float, width: int) -> str:
    """`start` and `length` as shares of the whole; never invisible, never past the edge."""
    eighths = max(1, round(min(length, 1.0) * width * 8))
    offset = min(int(start * width), width - 1)
    eighths = min(eighths, (width - offset) * 8)
    rest = EIGHTHS[eighths % 8].strip()
    return (" " * offset + FULL * (eighths // 8) + rest).ljust(width)


def _cells(row: Row, total_ns: int, width: int) -> list[str | Text]:
    span = row.span
    style = STYLES.get(span.service, "")
    stage = "  " * row.depth + span.name.partition(".")[2] if "." in span.name else span.name
    return [
        Text(span.service, style=style),
        Text(stage + (" (linked)" if row.linked else "")),
        _time(row, total_ns, width, style),
        _offset(row.start_ns),
        duration(row.duration_ns / 1e9),
        _details(row),
    ]


def _time(row: Row, total_ns: int, width: int, style: str) -> Text:
    if row.start_ns + row.duration_ns < 0:
        return dim(f"◂ {duration(-row.start_ns / 1e9)} before".ljust(width))
    if total_ns <= 0 or row.start_ns > total_ns:
        return dim("▸ after".rjust(width))
    start = max(row.start_ns, 0)
    length = row.duration_ns + min(row.start_ns, 0)
    return Text(bar(start / total_ns, length / total_ns, width), style=style)


def _offset(start_ns: int) -> str:
    return f"-{duration(-start_ns / 1e9)}" if start_ns < 0 else duration(start_ns / 1e9)


def _details(row: Row) -> Text:
    if row.span.error:
        return Text(row.span.error, style="bold red")
    return dim(" ".join(f"{key}={value}" for key, value in sorted(row.span.attributes.items())))


def _headline(waterfall: Waterfall) -> Text:
    spans, services = len(waterfall.rows), len(waterfall.services)
    return Text.from_markup(
        f"trace [bold]{waterfall.trace_id.hex()}[/]  total [bold]"
        f"{literal(duration(waterfall.total_ns / 1e9))}[/]  {spans} spans of {services} services"
    )


def _summary(waterfall: Waterfall) -> Text:
    between = (waterfall.total_ns - waterfall.covered_ns) / 1e9
    return Text(
        f"The stages cover {waterfall.coverage:.1%} of the total; "
        f"{duration(between)} lie between them."
    )
