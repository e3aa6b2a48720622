"""`sits simulate`: the mesh's own decisions on clusters that nobody has at hand."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from sits_cli.client import CliError
from sits_cli.options import Json
from sits_cli.output import Column, bad, good, literal, print_json, print_table, say
from sits_sim.figures import Figure, Number, Report, rounded
from sits_sim.plot import FORMATS, draw
from sits_sim.progress import progress
from sits_sim.scenarios import NAMES, Size, about
from sits_sim.scenarios import scenario as find

EXIT_MISSED = 1

Name = StrEnum("Name", {name: name for name in NAMES})  # type: ignore[misc]


def simulate(
    scenario: Annotated[
        Name | None,
        typer.Argument(metavar="SCENARIO", help="none = list them; docs/simulator.md tells more"),
    ] = None,
    seed: Annotated[int, typer.Option(help="another seed gives another run", min=0)] = 1,
    scale: Annotated[
        float,
        typer.Option(help="part of the full size, for a quick look", min=0.01, max=1.0),
    ] = 1.0,
    plot: Annotated[
        Path | None, typer.Option(help="draw the results into this PNG or SVG", metavar="FILE")
    ] = None,
    as_json: Json = False,
) -> None:
    """Simulate many GPUs with the decision code of the mesh. Exit status 1 when a bar is missed."""
    if scenario is None:
        listing()
        return
    if plot is not None and plot.suffix not in FORMATS:
        raise CliError(f"a plot ends in {' or '.join(FORMATS)}, got '{plot}'")
    with progress() as shown:
        report = find(scenario.value)(Size(seed=seed, scale=scale), shown)
    if plot is not None:
        draw(report.panels, plot, f"sits simulate {scenario.value}")
    if as_json:
        print_json(report.as_dict())
    else:
        show(report)
    if not report.holds:
        sys.exit(EXIT_MISSED)


def listing() -> None:
    print_table(("scenario", "simulates"), [(name, about(name)) for name in NAMES])
    say()
    say(literal("`sits simulate SCENARIO --scale 0.1` is a quick look; `--json` for programs."))


def show(report: Report) -> None:
    for name, value in report.parameters.items():
        say(f"[dim]{literal(name)}[/] {literal(str(value))}")
    say()
    right = [Column(title, right=True) for title in ("value", "reference", "ratio", "bar")]
    print_table(("figure", *right, "holds"), (_row(figure) for figure in report.figures))


def _row(figure: Figure) -> tuple[str | Text, ...]:
    verdict = {None: Text(""), True: good("yes"), False: bad("no")}[figure.holds]
    bar = "" if figure.bar is None else str(figure.bar)
    ratio = "" if figure.ratio is None else f"{_number(figure.ratio)}×"
    value = f"{_number(figure.value)} {figure.unit}".rstrip()
    return figure.figure, value, _number(figure.reference), ratio, bar, verdict


def _number(value: Number | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{rounded(value):g}"
