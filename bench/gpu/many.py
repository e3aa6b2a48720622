"""Several GPUs of one host: links, collectives, gangs, placement, a gang model, the mesh.

`PYTHONPATH=bench python -m gpu.many --json`. Runs on any number of GPUs; `--cpu` runs what does
not need one, with tiny models, to see that all of it works. A part that fails is printed whole and
the others go on. Fixtures for tests (what NVML answers) go into `--out` beside the results.
"""

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from gpu import gang_mesh, gangs, links, parallel, placement, record, scale
from gpu.links import Links
from gpu.parallel import Choose
from gpu.parts import Parts
from sits_scheduling.fabric import Cluster
from sits_scheduling.gangs import TopologyGangs
from sits_sim.figures import Figure
from sits_topology.probe.run import found_gpus
from sits_topology.sources import choose_source

PARTS = ("record", "links", "gangs", "placement", "parallel", "gang_mesh", "scale")


class Run:
    """What one part leaves for the next; each gives its figures."""

    def __init__(self, out: Path, raw: dict[str, Any], *, cpu: bool, fronts: int) -> None:
        self.out, self.raw, self.cpu, self.fronts = out, raw, cpu, fronts
        self._links: Links | None = None

    def record(self) -> list[Figure]:
        """And how the topology service reads it: nothing of a sound card may be missing."""
        record.record(self.out)
        read = choose_source("auto").read()
        self.raw["read"] = [
            [device.kind.name, device.health.name, device.health_reason, list(device.missing)]
            for device in read.devices
        ]
        return []

    def links(self) -> list[Figure]:
        found = self.measured_links
        self.raw["probe"] = links.anonymous(found.report.as_dict())
        return links.figures(found)

    def gangs(self) -> list[Figure]:
        figures, self.raw["all_reduces"] = gangs.measure(self.measured_links)
        return figures

    def placement(self) -> list[Figure]:
        return placement.measure(self.measured_links)

    def parallel(self) -> list[Figure]:
        sizes = [2] if self.cpu else [s for s in (2, 4, 8) if s <= torch.cuda.device_count()]
        choose: Choose = (lambda size: ()) if self.cpu else self._choose
        device = "cpu" if self.cpu else "cuda"
        with TemporaryDirectory() as folder:
            return parallel.measure(Path(folder), device, sizes, choose)

    def gang_mesh(self) -> list[Figure]:
        return gang_mesh.measure("cpu" if self.cpu else "cuda")

    def scale(self) -> list[Figure]:
        if self.cpu:
            settings = scale.Settings((), 2, [scale.TINY], 1, 1, 0.5, 1.0)
        else:
            gpus, _ = found_gpus(choose_source("auto").read().devices)
            names = list(gpus.names) if gpus else []
            kinds = [scale.HEAVY, scale.LIGHT]
            settings = scale.Settings(names, len(names), kinds, self.fronts)
        figures, self.raw["scale"] = scale.measure(settings)
        return figures

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


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gpu.many", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--cpu", action="store_true", help="without GPUs, tiny sizes")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART")
    parser.add_argument("--fronts", type=int, default=4, help="front door processes an executor")
    parser.add_argument("--out", type=Path, default=Path(".sits/gpu"), help="folder of results")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    parts = Parts(given.out / "many.json")
    run = Run(given.out, parts.raw, cpu=given.cpu, fronts=given.fronts)
    for name in given.only:
        parts.run(name, getattr(run, name))
    return parts.end(as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
