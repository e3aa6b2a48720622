"""What one GPU gives through SITS, part by part.

`PYTHONPATH=bench python -m gpu.run --json`. `--device cpu --quick` goes the same way without a
GPU, with tiny sizes, to see that all of it works. A part that fails is printed whole, and the
others go on. Kept results of GPUs are in `bench/gpu/results/`.
"""

import argparse
import json
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from gpu import (
    beside,
    equal,
    faults,
    front_door,
    graph_memory,
    launch,
    machine,
    own_cost,
    precision,
)
from gpu.rig import Part, Setup
from sits_bench.show import FAILED
from sits_cli.commands.simulate import show
from sits_sim.figures import Figure, Report

PARTS: Final[Mapping[str, Part]] = {
    "faults": faults.measure,
    "launch": launch.measure,
    "own_cost": own_cost.measure,
    "precision": precision.measure,
    "beside": beside.measure,
    "graph_memory": graph_memory.measure,
    "equal": equal.measure,
    "front_door": front_door.measure,
}


class Run:
    """What the parts found. Kept after every part: a run that is cut short keeps what it has."""

    def __init__(self, setup: Setup, out: Path | None) -> None:
        self._setup, self._out = setup, out
        self.figures: list[Figure] = []
        self.failed: list[str] = []

    def part(self, name: str) -> None:
        began = time.monotonic()
        try:
            self.figures += PARTS[name](self._setup)
        except Exception as error:  # noqa: BLE001 - the next part may work
            traceback.print_exc()
            self.failed.append(f"{name}: {type(error).__name__}: {error}")
        print(f"{name}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
        if self._out is not None:
            self._out.mkdir(parents=True, exist_ok=True)
            text = json.dumps(self.report().as_dict(), indent=1, ensure_ascii=False)
            (self._out / "one-gpu.json").write_text(text + "\n")

    def report(self) -> Report:
        parameters = {**machine.describe(), "device": self._setup.device}
        if self.failed:
            parameters[FAILED] = self.failed
        return Report(parameters, self.figures)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gpu.run", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--quick", action="store_true", help="shorter: which way, not how far")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--parts", nargs="+", choices=[*PARTS], default=[*PARTS], metavar="PART")
    parser.add_argument("--out", type=Path, help="folder that keeps the results")
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        run = Run(Setup(given.device, given.quick, Path(folder)), given.out)
        for name in given.parts:
            run.part(name)
    report = run.report()
    if given.json:
        print(json.dumps(report.as_dict(), indent=2, ensure_ascii=False))
    else:
        show(report)
    return 0 if report.holds and not run.failed else 1


if __name__ == "__main__":
    sys.exit(main())
