"""Load test kit: open loops with long tails, bursts, a noisy neighbour, or recorded traces."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from sits_bench import machine, repositories
from sits_bench.compare import request_file
from sits_bench.loadgen import BenchError, Latencies, Load, Measured, build, run
from sits_bench.mesh_system import MeshSystem
from sits_bench.onnx_models import MLP
from sits_bench.shapes import SHAPES, Shape
from sits_bench.show import finish, main, options
from sits_bench.system import Running
from sits_bench.watching import watching
from sits_sim.figures import Figure, Report, plain

SECONDS, QUICK_SECONDS = 45.0, 15.0
"""Three periods of bursts, and one."""
WARM_UP_S = 1.0
CONNECTIONS = 8


@dataclass(frozen=True, slots=True)
class Target:
    """A mesh that runs already; which of its processes are whose is not known."""

    address: str

    @contextmanager
    def start(self) -> Iterator[Running]:
        yield Running(self.address, list)


def offered(shape: Shape, timeout_ms: float) -> Load:
    inferences, which = shape.inferences(MLP.sample(1), MLP.name)
    return Load(
        request_file("shape", inferences),
        at_s=shape.at_s,
        which=which,
        connections=CONNECTIONS,
        warm_up_s=WARM_UP_S,
        duration_s=float(np.ceil(shape.at_s[-1])) - WARM_UP_S,
        timeout_ms=timeout_ms,
    )


def figures(name: str, shape: Shape, measured: Measured) -> list[Figure]:
    return [
        plain(f"{name}.offered: requests/s offered, mean", len(shape.at_s) / shape.at_s[-1], "/s"),
        plain(f"{name}.answered: requests/s answered, mean", measured.per_s, "/s"),
        plain(f"{name}.refused: share refused", measured.refused_share, ""),
        plain(f"{name}.unanswered: without an answer at the end", measured.unanswered, ""),
        *latencies(f"{name}.all", measured.answered),
        *(
            figure
            for kind, found in zip(shape.kinds, measured.kinds, strict=False)
            for figure in latencies(f"{name}.{kind}", found)
        ),
        plain(f"{name}.lag: how late the generator itself was, p99", measured.lag.p99, "ms"),
        # Whose processes a mesh that ran already has is not known.
        *([plain(f"{name}.cpu: CPU of the services a request", measured.cpu_us, "µs")]
          if measured.cpu_s else []),
    ]  # fmt: skip


def latencies(name: str, found: Latencies) -> list[Figure]:
    points = {"p50": found.p50, "p95": found.p95, "p99": found.p99, "p99.9": found.p999}
    return [plain(f"{name}.{point}: latency", value, "ms") for point, value in points.items()]


def body() -> int:
    parser = options(__doc__)
    parser.add_argument("shape", nargs="*", help=f"of {', '.join(SHAPES)}; default: all of them")
    parser.add_argument("--rate", type=float, default=1000.0, help="requests/s, mean (1000)")
    parser.add_argument("--seconds", type=float, help=f"of each shape ({SECONDS:g})")
    parser.add_argument("--seed", type=int, default=1, help="another seed gives another load (1)")
    parser.add_argument("--timeout-ms", type=float, default=0.0, help="deadline of each request")
    parser.add_argument(
        "--target", metavar="HOST:PORT",
        help=f"a front door of this machine that serves '{MLP.name}'; default: a mesh of our own",
    )  # fmt: skip
    given = parser.parse_args()
    if unknown := set(given.shape) - set(SHAPES):
        raise BenchError(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(SHAPES)}")
    seconds = given.seconds or (QUICK_SECONDS if given.quick else SECONDS)
    names = given.shape or list(SHAPES)
    parameters = {**machine.describe(), "rate": given.rate, "seconds": seconds, "seed": given.seed}
    build()
    found: list[Figure] = []
    own = MeshSystem("mesh", [repositories.network(MLP)])
    system = Target(given.target) if given.target else own
    with watching() as progress, system.start() as running:
        progress.expect(len(names) * seconds)
        for name in names:
            shape = SHAPES[name](given.rate, seconds, np.random.default_rng(given.seed))
            load = offered(shape, given.timeout_ms)
            found += figures(name, shape, run(load, running.target, running.pids()))
            progress.step(name, seconds)
    return finish("load", Report(parameters, found), given)


if __name__ == "__main__":
    main(body)
