"""Measure the mesh against its references and peers; docs/benchmarks.md explains the table."""

from dataclasses import asdict
from pathlib import Path

from sits_bench import machine, suite
from sits_bench.compare import FULL, QUICK
from sits_bench.mesh_system import BEST
from sits_bench.show import FAILED, finish, main, options
from sits_bench.watching import watching
from sits_sim.figures import Report


def body() -> int:
    parser = options(__doc__)
    parser.add_argument(
        "--only", nargs="+", default=(), metavar="FIGURE", help="groups or figures, as mesh.raw"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it into this PNG or SVG")
    given = parser.parse_args()
    plan = QUICK if given.quick else FULL
    described = machine.describe()
    with watching() as progress:
        bench, figures = suite.run(plan, progress, given.only)
    parameters = {**described, "ours": BEST, "plan": asdict(plan), "only": list(given.only)}
    if bench.missing:
        parameters["missing"] = bench.missing
    if bench.failures:
        parameters[FAILED] = bench.failures
    report = Report(parameters, figures, bench.panels)
    return finish("mesh", report, given, raw=bench.raw, plot=given.plot)


if __name__ == "__main__":
    main(body)
