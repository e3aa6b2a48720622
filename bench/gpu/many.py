"""Several GPUs of one host: links, collectives, gangs, placement, a gang model, the mesh.

`PYTHONPATH=bench python -m gpu.many --json`. Runs on any number of GPUs; `--cpu` runs what does
not need one, with tiny models, to see that all of it works. A part that fails is printed whole and
the others go on. Fixtures for tests (what NVML answers) go into `--out` beside the results.
"""

import argparse
import json
import random
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from gpu import gangs, links, machine, parallel, placement, record, scale
from gpu.links import Links
from gpu.parallel import Choose
from sits_bench.show import FAILED
from sits_cli.commands.simulate import show
from sits_scheduling.fabric import Cluster
from sits_scheduling.gangs import TopologyGangs
from sits_sim.figures import Figure, Report
from sits_topology.probe.run import found_gpus
from sits_topology.sources import choose_source

PARTS = ("record", "links", "gangs", "placement", "parallel", "scale")


class Run:
    """What the parts found, and what one leaves for the next."""

    def __init__(self, out: Path, *, cpu: bool, fronts: int) -> None:
        self.out, self.cpu, self.fronts = out, cpu, fronts
        self.figures: list[Figure] = []
        self.raw: dict[str, Any] = {}
        self.failed: list[str] = []
        self._links: Links | None = None

    def part(self, name: str, body: Callable[[], None]) -> None:
        began = time.monotonic()
        try:
            body()
        except Exception as error:  # noqa: BLE001 - the next part may work
            traceback.print_exc()
            self.failed.append(f"{name}: {type(error).__name__}: {error}")
        print(f"{name}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
        self.keep()

    def record(self) -> None:
        """And how the topology service reads it: nothing of a sound card may be missing."""
        record.record(self.out)
        read = choose_source("auto").read()
        self.raw["read"] = [
            [device.kind.name, device.health.name, device.health_reason, list(device.missing)]
            for device in read.devices
        ]

    def links(self) -> None:
        found = self.measured_links
        self.figures += links.figures(found)
        self.raw["probe"] = links.anonymous(found.report.as_dict())

    def gangs(self) -> None:
        figures, self.raw["all_reduces"] = gangs.measure(self.measured_links)
        self.figures += figures

    def placement(self) -> None:
        self.figures += placement.measure(self.measured_links)

    def parallel(self) -> None:
        sizes = [2] if self.cpu else [s for s in (2, 4, 8) if s <= torch.cuda.device_count()]
        choose: Choose = (lambda size: ()) if self.cpu else self._choose
        device = "cpu" if self.cpu else "cuda"
        with TemporaryDirectory() as folder:
            self.figures += parallel.measure(Path(folder), device, sizes, choose)

    def scale(self) -> None:
        if self.cpu:
            settings = scale.Settings((), 2, [scale.TINY], 1, 1, 0.5, 1.0)
        else:
            gpus, _ = found_gpus(choose_source("auto").read().devices)
            names = list(gpus.names) if gpus else []
            kinds = [scale.HEAVY, scale.LIGHT]
            settings = scale.Settings(names, len(names), kinds, self.fronts)
        figures, self.raw["scale"] = scale.measure(settings)
        self.figures += figures

    @property
    def measured_links(self) -> Links:
        if self._links is None:
            self._links = links.measure(self.out)
        return self._links

    def _choose(self, size: int) -> Sequence[str]:
        found = self.measured_links
        gpus = list(found.report.gpus)
        cluster = Cluster([gangs.node_of(found.published, gpus)])
        chosen = TopologyGangs(cluster, random.Random(1)).place(  # noqa: S311 - repeatable
            size, 64 << 20, np.zeros(len(gpus)), np.ones(len(gpus), bool)
        )
        members = chosen.devices if chosen else tuple(range(size))
        return [str(number) for number in members]  # the report has them in CUDA's order

    def report(self) -> Report:
        parameters = dict(machine.describe())
        if self.failed:
            parameters[FAILED] = self.failed
        return Report(parameters, self.figures)

    def keep(self) -> None:
        """After every part: a run that is cut short keeps what it has."""
        content = {**self.report().as_dict(), "runs": self.raw}
        (self.out / "many.json").write_text(json.dumps(content, indent=1, ensure_ascii=False))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gpu.many", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--cpu", action="store_true", help="without GPUs, tiny sizes")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART")
    parser.add_argument("--fronts", type=int, default=4, help="front door processes an executor")
    parser.add_argument("--out", type=Path, default=Path(".sits/gpu"), help="folder of results")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    run = Run(given.out, cpu=given.cpu, fronts=given.fronts)
    for name in given.only:
        run.part(name, getattr(run, name))
    report = run.report()
    if given.json:
        print(json.dumps(report.as_dict(), indent=2, ensure_ascii=False))
    else:
        show(report)
    return 0 if report.holds and not run.failed else 1


if __name__ == "__main__":
    sys.exit(main())
