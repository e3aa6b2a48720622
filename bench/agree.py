"""Does the simulator tell what a real mesh does? Both get the same arrivals at 30, 60, 90 % load.

What the simulator is given, all measured on the mesh itself: before any load, how long an
instance takes for a batch by rows, how that varies, and what the way to it and back takes;
and by which factor executions took longer in each tenth of a second of the load, since a
shared machine is not equally fast at all times. Which batches form, who waits how long, and
what comes out in a second is for it to say. The load is a share of what the mesh can do at the
speed of the run before. Figures are medians over the rounds.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from sits_bench import calibration, machine, repositories
from sits_bench.bars import compared
from sits_bench.calibration import Calibration
from sits_bench.compare import Progress, request_file, run
from sits_bench.loadgen import BenchError, Load
from sits_bench.loadgen import Measured as Run
from sits_bench.mesh_system import MeshSystem
from sits_bench.onnx_models import MAX_BATCH, TRANSFORMER
from sits_bench.show import finish, main, options
from sits_bench.system import Running
from sits_bench.watching import watching
from sits_scheduling.batching import BatchPolicy
from sits_sim.agree import Measured, Prediction, Setup, capacity_per_s, predict
from sits_sim.figures import Figure, Panel, Report, Series, at_most, plain
from sits_sim.load import Floats, poisson

LOADS: Final = (0.3, 0.6, 0.9)
WITHIN: Final = 0.15
NETWORK: Final = TRANSFORMER
SETUP: Final = Setup(instances=1, policy=BatchPolicy(MAX_BATCH))
ROUNDS, QUICK_ROUNDS = 5, 1
RUN_S, WARM_UP_S, CALIBRATION_S = 8.0, 1.5, 0.5
"""Of each load, before each load, and for each number of rows and each pass over them."""
START_S: Final = 6.0


@dataclass(frozen=True, slots=True)
class Point:
    """One run of one load: what was measured, what was known, and what was foretold."""

    load: float
    real: Run
    known: Measured
    foretold: Prediction


Values = Callable[[Point], tuple[float, float]]

COMPARED: Final[Sequence[tuple[str, str, Values]]] = (
    ("p50", "ms", lambda point: (point.foretold.p50_ms, point.real.answered.p50)),
    ("p99", "ms", lambda point: (point.foretold.p99_ms, point.real.answered.p99)),
    ("throughput", "1/s", lambda point: (point.foretold.throughput_per_s, point.real.per_s)),
)
"""What is foretold, and what was measured."""


def points(rounds: int, seed: int, progress: Progress) -> Iterator[Point]:
    calibrate_s = calibration.seconds_of(CALIBRATION_S)
    progress.expect(START_S + calibrate_s + rounds * len(LOADS) * (WARM_UP_S + RUN_S))
    with MeshSystem("agree", [repositories.network(NETWORK)]).start() as running:
        progress.step("started", START_S)
        alone = calibration.measure(running, NETWORK, CALIBRATION_S)
        known = alone.measured()
        progress.step("run times", calibrate_s)
        for number in range(rounds):
            for load in LOADS:
                per_s = load * capacity_per_s(known, SETUP)
                found = point(running, alone, load, per_s, seed + number)
                known = found.known
                yield found
                progress.step(f"{load:.0%} load", WARM_UP_S + RUN_S)


def point(running: Running, alone: Calibration, load: float, per_s: float, seed: int) -> Point:
    at_s = poisson(per_s, WARM_UP_S + RUN_S, np.random.default_rng(seed))
    with calibration.watched(running, NETWORK) as periods:
        real = offer(running, at_s)
    if not periods:
        raise BenchError("the model statistics count no execution under load")
    known = alone.under_load(periods)
    return Point(load, real, known, predict(known, SETUP, at_s, WARM_UP_S))


def offer(running: Running, at_s: Floats) -> Run:
    """All of it must be answered. Raises `BenchError`."""
    requests = request_file(NETWORK.name, [NETWORK.inference()])
    load = Load(requests, at_s=at_s, warm_up_s=WARM_UP_S, duration_s=RUN_S)
    found = run(running, load)
    if found.refused.count or found.unanswered:
        raise BenchError(
            f"{found.refused.count} requests refused, {found.unanswered} without an answer: "
            f"{found.first_error or found.statuses}"
        )
    return found


def figures(load: float, found: Sequence[Point]) -> list[Figure]:
    """How far off, as a share of what was measured; then both values."""
    figures = []
    for what, unit, values in COMPARED:
        name = f"{what} at {load:.0%} load"
        pairs = [values(point) for point in found]
        off = abs(statistics.median(said / seen for said, seen in pairs) - 1.0)
        said, seen = (statistics.median(column) for column in zip(*pairs, strict=True))
        figures += [
            at_most(f"{name}: prediction off by", off, "", WITHIN),
            compared(f"{name}: predicted, against measured", said, unit, seen),
        ]
    lag = statistics.median(point.real.lag.p99 for point in found)
    return [*figures, plain(f"generator late at {load:.0%} load, p99", lag, "ms")]


def panel(by_load: dict[float, list[Point]]) -> Panel:
    """p50 and p99, predicted and measured."""
    loads = list(by_load)
    series = []
    for what, _, values in COMPARED[:2]:
        for position, kind in enumerate(("predicted", "measured")):
            y = [statistics.median(values(p)[position] for p in by_load[load]) for load in loads]
            series.append(Series(f"{what} {kind}", loads, y))
    return Panel("latency", "load", "ms", series)


def as_parameters(known: Measured) -> dict[str, object]:
    return {
        "run_us": {rows: round(us) for rows, us in known.run_us.items()},
        "way_us": round(known.way_us),
        "spread": round(known.spread, 3),
        "pace": [round(times, 2) for _, times in known.pace],
    }


def body() -> int:
    parser = options(__doc__)
    parser.add_argument("--seed", type=int, default=1, help="another seed gives other arrivals (1)")
    given = parser.parse_args()
    rounds = QUICK_ROUNDS if given.quick else ROUNDS
    described = machine.describe()
    by_load: dict[float, list[Point]] = {load: [] for load in LOADS}
    with watching() as progress:
        for point in points(rounds, given.seed, progress):
            by_load[point.load].append(point)
    parameters = {
        **described, "network": NETWORK.name, "rounds": rounds, "seconds": RUN_S,
        "seed": given.seed,
        "known": {f"{x:.0%}": [as_parameters(p.known) for p in found]
                  for x, found in by_load.items()},
    }  # fmt: skip
    found = [figure for load, several in by_load.items() for figure in figures(load, several)]
    return finish("agree", Report(parameters, found, [panel(by_load)]), given)


if __name__ == "__main__":
    main(body)
