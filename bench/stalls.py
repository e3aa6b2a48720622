"""Find time without an answer in an open loop, and tell whether the machine stood still then.

Runs take a fixed time and no CPU. Closed loops of 16, 32 and 64 requests of eight rows, then
random arrivals at 70 % of what they gave. A stall is time without an answer that two full runs do
not explain. The load generator times a small piece of work meanwhile: where that takes several
times as long as usual, the machine itself was held back.
"""

from collections.abc import Sequence
from statistics import median
from typing import Final

import numpy as np

from sits_bench import machine, repositories
from sits_bench.compare import request_file
from sits_bench.loadgen import Load, Measured, Stall, build, own_stalls, run
from sits_bench.mesh_system import MeshSystem
from sits_bench.messages import Inference, random_floats
from sits_bench.show import finish, main, options
from sits_bench.watching import watching
from sits_sim.figures import Figure, Report, at_most, plain
from sits_sim.load import poisson

ROUNDS: Final = 5
IN_FLIGHT: Final = (16, 32, 64)
CLOSED_S, OPEN_S, WARM_UP_S = 3.0, 10.0, 1.0
LOAD: Final = 0.7
RUN_MS, ROW_MS, INSTANCES, ROWS = 8.0, 0.3, 2, 8
FULL_RUN_MS: Final = RUN_MS + 32 * ROW_MS
TAIL: Final = 2.0


def system() -> MeshSystem:
    more = "".join(
        f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}\n'
        for key, value in {"sleep_ms": RUN_MS, "sleep_ms_per_row": ROW_MS}.items()
    )
    group = f"instance_group {{ count: {INSTANCES} kind: KIND_CPU }}\n"
    return MeshSystem("stalls", [repositories.echo(function="sleep", more=more + group)], base={})


def one_round(target: str, number: int, open_s: float) -> Measured:
    """The open loop, after the closed ones."""
    asked = Inference(repositories.ECHO, {"INPUT": random_floats(1, ROWS, 256)})
    requests = request_file("stalls", [asked])
    most = max(
        run(Load(requests, n, warm_up_s=WARM_UP_S, duration_s=CLOSED_S), target).per_s
        for n in IN_FLIGHT
    )
    at_s = poisson(LOAD * most, WARM_UP_S + open_s, np.random.default_rng(number))
    stall_ms = 2 * FULL_RUN_MS
    return run(
        Load(requests, at_s=at_s, warm_up_s=WARM_UP_S, duration_s=open_s, stall_ms=stall_ms), target
    )


def figures(rounds: Sequence[Measured]) -> list[Figure]:
    """Rounds in which the machine stood still say nothing of the mesh; they are told, too."""
    stalls = [stall for found in rounds for stall in found.stalls]
    own = [stall for stall in stalls if not stall.of_machine]
    calm = [found for found in rounds if not any(stall.of_machine for stall in found.stalls)]
    return [
        plain("stalls.all: p99 over p50 at 70 %, median of all rounds", _tail(rounds), "x"),
        *([at_most("stalls.calm: the same where the machine ran on", _tail(calm), "x", TAIL)]
          if calm else []),
        plain("stalls.rounds: rounds in which the machine ran on", len(calm), ""),
        at_most("stalls.own: stalls while the machine ran on", own_stalls(stalls), "", 0),
        plain("stalls.longest: the longest of these", _longest(own), "ms"),
        plain("stalls.machine: stalls in which it was held back", len(stalls) - len(own), ""),
        plain("stalls.machine_longest: the longest of these",
              _longest([s for s in stalls if s.of_machine]), "ms"),
    ]  # fmt: skip


def _tail(rounds: Sequence[Measured]) -> float:
    return median(found.answered.p99 / found.answered.p50 for found in rounds)


def _longest(stalls: Sequence[Stall]) -> float:
    return max((stall.ms for stall in stalls), default=0.0)


def body() -> int:
    parser = options(__doc__)
    given = parser.parse_args()
    rounds, open_s = (2, 5.0) if given.quick else (ROUNDS, OPEN_S)
    seconds = len(IN_FLIGHT) * (WARM_UP_S + CLOSED_S) + WARM_UP_S + open_s
    parameters = {**machine.describe(), "rounds": rounds, "seconds": open_s}
    build()
    found: list[Measured] = []
    with watching() as progress, system().running() as (_, running):
        progress.expect(rounds * seconds)
        for number in range(rounds):
            found.append(one_round(running.target, number, open_s))
            progress.step(f"round {number + 1}", seconds)
    raw = [
        {"p50": each.answered.p50, "p99": each.answered.p99, "lag": each.lag.max,
         "stalls": [stall._asdict() for stall in each.stalls]}
        for each in found
    ]  # fmt: skip
    return finish("stalls", Report(parameters, figures(found)), given, raw=raw)


if __name__ == "__main__":
    main(body)
