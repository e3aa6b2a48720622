"""What settings of services change: the mesh with them against the mesh without, in turns.

Closed loops of 1, 16, 64 and 256 requests of 1 KB; each round starts with the other one. Without
arguments: threads of Python on all processors, instead of each service's on one of its own.
"""

from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

from sits_bench import checks, machine, repositories
from sits_bench.bars import compared
from sits_bench.compare import (
    Progress,
    Value,
    cpu_us,
    p50_ms,
    p99_ms,
    per_s,
    request_file,
    steady,
)
from sits_bench.groups.front import KILOBYTE
from sits_bench.loadgen import Load, Measured
from sits_bench.mesh_system import MeshSystem
from sits_bench.show import finish, main, options
from sits_bench.watching import watching
from sits_sim.figures import Figure, Report

ROUNDS, QUICK_ROUNDS = 7, 3
IN_FLIGHT: Final = (1, 16, 64, 256)
WARM_UP_S, RUN_S, START_S = 0.5, 2.0, 5.0
ROUND_S: Final = 2 * (START_S + len(IN_FLIGHT) * (WARM_UP_S + RUN_S))
UNBOUND: Final = ("SITS_PREPROCESS_PYTHON_CPUS=", "SITS_DISPATCHER_PYTHON_CPUS=")
USUAL, CHANGED = "usual", "changed"

Found = dict[tuple[str, int], list[Measured]]


def variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.startswith("SITS_"):
        raise ArgumentTypeError(f"expected SITS_NAME=VALUE, not {text!r}")
    return name, value


def measure(env: Mapping[str, str], rounds: int, progress: Progress) -> Found:
    found: Found = {}
    variants = [(USUAL, {}), (CHANGED, dict(env))]
    requests = request_file("settings", [KILOBYTE])
    progress.expect(rounds * ROUND_S)
    for number in range(rounds):
        for name, more in variants if number % 2 else variants[::-1]:
            with MeshSystem(f"settings {name}", [repositories.echo()], more).start() as running:
                checks.echoes(running, inference=KILOBYTE)
                for many in IN_FLIGHT:
                    load = Load(requests, many, warm_up_s=WARM_UP_S, duration_s=RUN_S)
                    found.setdefault((name, many), []).append(steady(running, load))
            progress.step(f"round {number + 1}: {name}", ROUND_S / 2)
    return found


def figures(found: Found) -> list[Figure]:
    values = (("requests/s", "1/s", per_s), ("p50", "ms", p50_ms), ("p99", "ms", p99_ms),
              ("CPU a request", "µs", cpu_us))  # fmt: skip
    return [
        compared(f"{what}, {many} in flight: changed, against usual",
                 _median(found[CHANGED, many], value), unit, _median(found[USUAL, many], value))
        for many in IN_FLIGHT
        for what, unit, value in values
    ]  # fmt: skip


def _median(runs: Sequence[Measured], value: Value) -> float:
    return median(value(run) for run in runs)


def body() -> int:
    parser = options(__doc__)
    parser.add_argument("env", nargs="*", type=variable, metavar="SITS_NAME=VALUE",
                        default=[variable(each) for each in UNBOUND])  # fmt: skip
    given = parser.parse_args()
    described, env = machine.describe(), dict(given.env)
    rounds = QUICK_ROUNDS if given.quick else ROUNDS
    with watching() as progress:
        found = measure(env, rounds, progress)
    parameters = {**described, "rounds": rounds, "seconds": RUN_S, "changed": env}
    return finish("compare-settings", Report(parameters, figures(found)), given)


if __name__ == "__main__":
    main(body)
