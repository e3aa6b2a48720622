"""`sits bench NAME`: runs a benchmark of the checkout's bench/ folder."""

import ast
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from sits_cli.client import CliError
from sits_cli.output import literal, print_table, say

BENCH = Path(__file__).resolve().parents[4] / "bench"
HELP = ("--help", "-h", "")
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Options are the benchmark's own, --help too."""


def bench(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="none = list them")] = "",
) -> None:
    """Measure: `sits bench` lists the benchmarks, `sits bench NAME --help` their options."""
    if name in HELP:
        listing(BENCH)
        return
    argv = command(BENCH, name, context.args)
    sys.stdout.flush()
    os.execv(argv[0], argv)  # noqa: S606 - the benchmark takes our place, its status is ours


def command(folder: Path, name: str, args: list[str]) -> list[str]:
    """What to run. An unknown name is wrong usage; raises `CliError` without a checkout."""
    known = benchmarks(folder)
    if name not in known:
        raise typer.BadParameter(f"no benchmark {name}: there are {', '.join(known)}")
    return [sys.executable, str(known[name]), *args]


def benchmarks(folder: Path) -> dict[str, Path]:
    """Scripts by name, as `ring-soak` for ring_soak.py."""
    if not folder.is_dir():
        raise CliError("benchmarks need a checkout with its bench/ folder: this is an installation")
    return {file.stem.replace("_", "-"): file for file in sorted(folder.glob("*.py"))}


def listing(folder: Path) -> None:
    print_table(
        ("benchmark", "measures"), [(n, _about(file)) for n, file in benchmarks(folder).items()]
    )
    say()
    say(literal("`sits bench NAME --help` tells more; most take --json and --quick."))


def _about(script: Path) -> str:
    """The first line of its docstring."""
    text = ast.get_docstring(ast.parse(script.read_text())) or ""
    return text.partition("\n")[0]
