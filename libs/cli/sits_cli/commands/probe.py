"""`sits probe`: times real copies and collectives of this host."""

import json
import subprocess
import sys
from collections.abc import Iterator
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any, Final

import typer

from sits_cli.client import CliError
from sits_cli.options import Json
from sits_cli.output import Column, duration, literal, print_json, print_table, say, size
from sits_sim.progress import progress

PROGRAM: Final = "sits_topology"
TITLES = ("from", "to", "how", Column("bytes", right=True), Column("time", right=True),
          Column("GB/s", right=True), Column("spread", right=True))  # fmt: skip

Report = dict[str, Any]


class Mode(StrEnum):
    BANDWIDTH = "bandwidth"


def probe(
    output: Annotated[
        Path, typer.Option("--output", help="where the report goes", metavar="FILE")
    ] = Path("topo.json"),
    mode: Annotated[Mode, typer.Option(help="what is measured")] = Mode.BANDWIDTH,
    quick: Annotated[bool, typer.Option("--quick", help="small sizes, for a first look")] = False,
    as_json: Json = False,
) -> None:
    """Measure how fast this host moves data: GPU to GPU, host to GPU, all-reduce.

    SITS_TOPOLOGY_MEASURED=FILE lets the topology service of this host publish what was found.
    """
    if find_spec(PROGRAM) is None:
        raise CliError("sits-topology does the measuring, and it is not installed here")
    command = [sys.executable, "-m", f"{PROGRAM}.probe", "--output", str(output)]
    run([*command, "--quick"] if quick else command)
    report: Report = json.loads(output.read_text())
    if as_json:
        print_json(report)
    else:
        show(report, output)


def run(command: list[str]) -> None:
    """Draws a bar while it lasts. Raises `CliError` with the last line that it wrote."""
    with TemporaryFile("w+") as errors, progress() as shown:
        with subprocess.Popen(  # noqa: S603 - ours
            command, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process:
            try:
                for told in _told(process):
                    if "steps" in told:
                        shown.expect("measuring", int(told["steps"]))
                    else:
                        shown.advance(1)
                process.wait()
            finally:
                process.kill()
        if process.returncode != 0:
            errors.seek(0)
            last = errors.read().strip().splitlines()[-1:]
            raise CliError(f"the probe failed: {(last or [f'status {process.returncode}'])[0]}")


def _told(process: "subprocess.Popen[str]") -> Iterator[dict[str, Any]]:
    for line in process.stdout or ():
        yield json.loads(line)


def show(report: Report, output: Path) -> None:
    if report["copies"]:
        print_table(TITLES, (_copy(row) for row in report["copies"]))
        say()
    if report["all_reduces"]:
        titles = ("all-reduce over", *TITLES[3:5], Column("GB/s a link", right=True), TITLES[6])
        print_table(titles, (_all_reduce(row) for row in report["all_reduces"]))
        say()
    for note in report["notes"]:
        say(f"[yellow]{literal(note)}[/]")
    say(literal(f"written to {output}: SITS_TOPOLOGY_MEASURED={output.resolve()} publishes it"))


def _copy(row: Report) -> tuple[str, ...]:
    return (row["source"], row["target"], row["how"], *_times(row), f"{row['gbps']:.4g}",
            f"{row['spread']:.1%}")  # fmt: skip


def _all_reduce(row: Report) -> tuple[str, ...]:
    return ", ".join(row["gang"]), *_times(row), f"{row['bus_gbps']:.4g}", f"{row['spread']:.1%}"


def _times(row: Report) -> tuple[str, str]:
    return size(row["bytes"]), duration(row["seconds"])
