"""Prints a report, keeps it, and turns it into an exit status: what all benchmarks end with."""

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sits_bench.loadgen import BenchError
from sits_bench.paths import RESULTS
from sits_cli.commands.simulate import show
from sits_cli.output import console, literal, print_json, say
from sits_sim.figures import Report
from sits_sim.plot import draw

EXIT_FAILED = 1
FAILED = "failed"
"""Parameter that lists what went wrong, if anything did."""


def options(description: str | None) -> argparse.ArgumentParser:
    """Those that every benchmark has."""
    name = Path(sys.argv[0]).stem.replace("_", "-")
    parser = argparse.ArgumentParser(prog=f"sits bench {name}", description=description)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--quick", action="store_true", help="shorter runs: which way, not how far")
    parser.add_argument("--keep", action="store_true", help="write a file into bench/results/")
    return parser


def _finite(value: Any) -> Any:
    """JSON knows no infinity: nothing stands in its place."""
    match value:
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {key: _finite(each) for key, each in value.items()}
        case list() | tuple():
            return [_finite(each) for each in value]
        case _:
            return value


def finish(
    name: str,
    report: Report,
    given: argparse.Namespace,
    *,
    raw: Sequence[dict[str, Any]] = (),
    plot: Path | None = None,
    table: bool = True,
) -> int:
    """The exit status: 0 if all bars hold and nothing failed. Not `table`: it is printed."""
    if given.keep:
        kept = keep(name, report, raw)
        console(stderr=True).print(f"kept in {literal(str(kept))}", soft_wrap=True)
        if report.panels:
            draw(report.panels, kept.with_suffix(".svg"), f"sits bench {name}")
    if plot is not None:
        draw(report.panels, plot, f"sits bench {name}")
    if given.json:
        print_json(_finite(report.as_dict()))
    elif table:
        show(report)
        if any(figure.bar is not None for figure in report.figures):
            say()
            say("all bars hold" if report.holds else "[bold red]not all bars hold[/]")
    failed = report.parameters.get(FAILED)
    for text in failed if isinstance(failed, list) else ():
        console(stderr=True).print(f"[bold red]failed:[/] {literal(text)}", soft_wrap=True)
    return 0 if report.holds and not failed else EXIT_FAILED


def keep(name: str, report: Report, raw: Sequence[dict[str, Any]]) -> Path:
    """bench/results/DATE-NAME.json, with every single run."""
    date = str(report.parameters["date"]).replace(":", "")[:15].replace("T", "-")
    file = RESULTS / f"{date}-{name}.json"
    RESULTS.mkdir(parents=True, exist_ok=True)
    content = {**report.as_dict(), "runs": list(raw)}
    file.write_text(
        json.dumps(_finite(content), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    )
    return file


def main(body: Callable[[], int]) -> None:
    """Run a benchmark; failures that say what to do end without a traceback."""
    try:
        sys.exit(body())
    except BenchError as error:
        console(stderr=True).print(f"[bold red]error:[/] {literal(str(error))}", soft_wrap=True)
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        sys.exit(130)
