"""`sits doctor`: looks an installation over and says what to do."""

import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict

from rich.text import Text

from sits_cli.doctor import machine, network, repository, settings, software
from sits_cli.doctor.finding import Check, Environ, Finding, Level
from sits_cli.options import Json
from sits_cli.output import bad, console, count, dim, good, print_json, print_table, say

EXIT_PROBLEMS = 1
CHECKS: tuple[Check, ...] = (
    software.python, software.packages, settings.settings, network.redis, network.ports,
    machine.shared_memory, machine.descriptors, machine.clock, machine.gpus, repository.models,
)  # fmt: skip
MARKS = {
    Level.GOOD: good("✓"),
    Level.NOTE: dim("·"),
    Level.WARNING: Text("!", style="yellow"),
    Level.PROBLEM: bad("✗"),
}


def doctor(as_json: Json = False) -> None:
    """Look an installation over: software, settings, ports, Redis, memory, clock, GPUs, models."""
    with console(stderr=True).status("looking"):
        findings = list(examine(os.environ))
    if as_json:
        print_json([asdict(found) | {"level": found.level.value} for found in findings])
    else:
        show(findings)
    if any(found.level is Level.PROBLEM for found in findings):
        sys.exit(EXIT_PROBLEMS)


def examine(environ: Environ, checks: Iterable[Check] = CHECKS) -> Iterator[Finding]:
    for check in checks:
        yield from check(environ)


def show(findings: list[Finding]) -> None:
    print_table(("", "", "found", "what to do"), map(_row, findings))
    counts = Counter(found.level for found in findings)
    problems, warnings = counts[Level.PROBLEM], counts[Level.WARNING]
    say(f"\n{count(problems, 'problem')}, {count(warnings, 'warning')}")


def _row(found: Finding) -> tuple[str | Text, ...]:
    return MARKS[found.level], found.area, found.text, found.do
