"""What one GPU gives through SITS, part by part.

`PYTHONPATH=bench python -m gpu.run --json`. `--device cpu --quick` goes the same way without a
GPU, with tiny sizes, to see that all of it works. A part that fails is printed whole, and the
others go on. Kept results of GPUs are in `bench/gpu/results/`.
"""

import argparse
import sys
from collections.abc import Mapping
from functools import partial
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
    onnx_runtime,
    own_cost,
    precision,
)
from gpu.parts import Parts
from gpu.rig import Part, Setup

PARTS: Final[Mapping[str, Part]] = {
    "faults": faults.measure,
    "own_cost": own_cost.measure,
    "precision": precision.measure,
    "beside": beside.measure,
    "graph_memory": graph_memory.measure,
    "equal": equal.measure,
    "front_door": front_door.measure,
    "onnx": onnx_runtime.measure,
    "launch": launch.measure,
}
"""`launch` comes last: after its profiler, every launch in the process takes longer."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gpu.run", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--quick", action="store_true", help="shorter: which way, not how far")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--parts", nargs="+", choices=[*PARTS], default=[*PARTS], metavar="PART")
    parser.add_argument("--out", type=Path, help="folder that keeps the results")
    given = parser.parse_args()
    parts = Parts(given.out and given.out / "one-gpu.json", device=given.device)
    with TemporaryDirectory() as folder:
        setup = Setup(given.device, given.quick, Path(folder))
        for name in given.parts:
            parts.run(name, partial(PARTS[name], setup))
    return parts.end(as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
