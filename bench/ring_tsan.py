"""Builds the ring's C core with ThreadSanitizer and lets two threads fight over it."""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from sits_sim.figures import Report, at_most, plain

SOURCE = Path(__file__).with_name("ring_stress.c")
FLAGS = (
    "-std=gnu11",
    "-D_GNU_SOURCE",
    "-O1",
    "-g",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-pthread",
    "-fsanitize=thread",
)
RACE_EXIT = 66


def run(rounds: int, seed: int, compiler: str) -> Report:
    """Raises `SystemExit` when it cannot be built or cannot be run."""
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder, "ring_stress"))
        subprocess.run([compiler, *FLAGS, str(SOURCE), "-o", program], check=True)  # noqa: S603
        # Old ThreadSanitizers know no addresses as random as those of new kernels.
        command = ["setarch", "-R", program, str(rounds), str(seed)]
        done = subprocess.run(command, capture_output=True, text=True)  # noqa: S603
    races = done.stderr.count("WARNING: ThreadSanitizer")
    if not done.stdout or done.returncode not in (0, 1, RACE_EXIT):
        raise SystemExit(f"{program} ended with {done.returncode}: {done.stderr}")
    sys.stderr.write(done.stderr)
    messages, wrong = map(int, done.stdout.split())
    return Report(
        {"rounds": rounds, "seed": seed, "compiler": compiler},
        [
            plain("messages read", messages, "messages"),
            at_most("torn, lost or doubled messages", wrong, "messages", 0),
            at_most("data races", races, "reports", 0),
        ],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compiler", default="gcc")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    report = run(options.rounds, options.seed, options.compiler)
    if options.json:
        print(json.dumps(report.as_dict(), indent=2))
    else:
        for figure in report.figures:
            verdict = {None: "", True: "holds", False: "FAILS"}[figure.holds]
            print(f"{figure.figure:36} {figure.value:>12,} {figure.unit:10} {verdict}")
    return 0 if report.holds else 1


if __name__ == "__main__":
    sys.exit(main())
