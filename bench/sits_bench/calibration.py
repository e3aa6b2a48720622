"""What the simulator has to know of a mesh that runs: run times by rows, and the way to them."""

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Final, NamedTuple

import numpy as np
import tritonclient.grpc as triton

from sits_bench.compare import request_file, steady
from sits_bench.loadgen import BenchError, Load
from sits_bench.loadgen import Measured as Run
from sits_bench.messages import Inference
from sits_bench.onnx_models import Network
from sits_bench.system import Running
from sits_sim.agree import Measured

ROWS: Final = (1, 2, 4, 8, 16, 32)
SATURATED: Final = {1: 2, 8: 16}
"""Rows of a batch → requests of one row in flight that keep an instance in such batches. Of larger
ones too few run in a few seconds: one more or less at the edge of the window would be the gap."""
SATURATED_TIMES: Final = 2.0
"""A saturated run takes so many times as long as the others."""
PASSES: Final = 5
"""Over all sizes, of which the medians count: in a slow second one size alone would seem slow."""
WARM_UP_S: Final = 0.2
PERIOD_S: Final = 0.1
"""A shared machine is faster and slower for longer than that."""


class Executions(NamedTuple):
    """How often, and how long an instance was busy with them."""

    times: int
    busy_us: float


NONE: Final = Executions(0, 0.0)
ByRows = Mapping[int, Executions]


class Period(NamedTuple):
    """What was executed from `at_s` of a load on, until the next one."""

    at_s: float
    seen: ByRows


@dataclass(frozen=True, slots=True)
class Calibration:
    """`busy_us` by rows: staging of inputs, the run itself, packing of outputs, of requests one
    at a time; `lone_us`: the whole of the smallest one; means. `gap_us`: what an instance does
    between two batches of the sizes in `SATURATED`; it shows only when it always has work.
    `spread` by rows: p99 over p50 of the whole; small ones suffer more from whatever else runs.
    """

    busy_us: Mapping[int, float]
    lone_us: float
    gap_us: tuple[float, float]
    spread: Mapping[int, float]

    def measured(self) -> Measured:
        """What the simulator is told of a mesh that is alone."""
        gaps = list(SATURATED), self.gap_us
        run_us = {rows: us + float(np.interp(rows, *gaps)) for rows, us in self.busy_us.items()}
        return Measured(run_us, way_us=max(0.0, self.lone_us - run_us[1]))

    def under_load(self, periods: Sequence[Period]) -> Measured:
        """What it is told for a load in which that was executed: run times longer by as much as
        those were, also from period to period, and the spread of such sizes."""
        alone, seen = self.measured(), total(period.seen for period in periods)
        times = sum(one.times for one in seen.values())
        spread = sum(one.times * _at(rows, self.spread) for rows, one in seen.items()) / times
        drift = self._drift(seen)
        pace = tuple(
            (period.at_s, self._drift(period.seen) / drift) for period in periods if period.seen
        )
        run_us = {rows: us * drift for rows, us in alone.run_us.items()}
        return replace(alone, run_us=run_us, spread=spread, pace=pace)

    def _drift(self, seen: ByRows) -> float:
        """How many times longer executions under load took than those alone of as many rows:
        a shared machine is not equally fast at all times."""
        alone_us = sum(one.times * _at(rows, self.busy_us) for rows, one in seen.items())
        return sum(one.busy_us for one in seen.values()) / alone_us


def _at(rows: int, known: Mapping[int, float]) -> float:
    return float(np.interp(rows, list(known), list(known.values())))


def measure(running: Running, network: Network, seconds: float) -> Calibration:
    """`seconds` for each size and each pass. Raises `BenchError`."""
    return middle([_measure(running, network, seconds) for _ in range(PASSES)])


def middle(passes: Sequence[Calibration]) -> Calibration:
    """The median of each value."""
    few, many = (median(each.gap_us[end] for each in passes) for end in (0, 1))
    return Calibration(
        {rows: median(each.busy_us[rows] for each in passes) for rows in passes[0].busy_us},
        median(each.lone_us for each in passes),
        (few, many),
        {rows: median(each.spread[rows] for each in passes) for rows in passes[0].spread},
    )


def _measure(running: Running, network: Network, seconds: float) -> Calibration:
    lone = {rows: _lone(running, network, rows, seconds) for rows in ROWS}
    longer_s = SATURATED_TIMES * seconds
    few, many = (_gap_us(running, network, n, longer_s) for n in SATURATED.values())
    return Calibration(
        {rows: seen[rows].busy_us / seen[rows].times for rows, (_, seen) in lone.items()},
        lone[1][0].answered.mean * 1e3,
        (few, many),
        {rows: run.answered.p99 / run.answered.p50 for rows, (run, _) in lone.items()},
    )


def seconds_of(seconds: float) -> float:
    """How long `measure` takes."""
    lone_s = len(ROWS) * (WARM_UP_S + seconds)
    return PASSES * (lone_s + len(SATURATED) * (WARM_UP_S + SATURATED_TIMES * seconds))


def executions(running: Running, network: Network) -> ByRows:
    """So far, as the mesh's own model statistics tell."""
    with triton.InferenceServerClient(running.target) as client:
        (stats,) = client.get_inference_statistics(network.name).model_stats
    return {
        int(batch.batch_size): Executions(
            batch.compute_infer.count,
            (batch.compute_input.ns + batch.compute_infer.ns + batch.compute_output.ns) / 1e3,
        )
        for batch in stats.batch_stats
    }


def between(before: ByRows, after: ByRows) -> ByRows:
    """Those that came in the meantime."""
    found = {}
    for rows, now in after.items():
        then = before.get(rows, NONE)
        if now.times > then.times:
            found[rows] = Executions(now.times - then.times, now.busy_us - then.busy_us)
    return found


def total(several: Iterable[ByRows]) -> ByRows:
    found: dict[int, Executions] = {}
    for each in several:
        for rows, one in each.items():
            times, busy_us = found.get(rows, NONE)
            found[rows] = Executions(times + one.times, busy_us + one.busy_us)
    return found


@contextmanager
def watched(running: Running, network: Network) -> Iterator[list[Period]]:
    """Fills the list with what is executed, by `PERIOD_S`. The first execution tells when the
    load began: it ended in the period that has it."""
    looks, ended = [(time.monotonic(), executions(running, network))], threading.Event()

    def look() -> None:
        looks.append((time.monotonic(), executions(running, network)))

    def watch() -> None:
        while not ended.wait(PERIOD_S):
            look()

    thread = threading.Thread(target=watch, name="watch", daemon=True)
    thread.start()
    periods: list[Period] = []
    try:
        yield periods
    finally:
        ended.set()
        thread.join()
    look()
    periods += as_periods(looks)


def as_periods(looks: Sequence[tuple[float, ByRows]]) -> list[Period]:
    """From the one that has the first execution on, which starts at 0 s."""
    found = [Period(at_s, between(then, now)) for (at_s, then), (_, now) in pairwise(looks)]
    while found and not found[0].seen:
        del found[0]
    return [period._replace(at_s=period.at_s - found[0].at_s) for period in found]


def _lone(running: Running, network: Network, rows: int, seconds: float) -> tuple[Run, ByRows]:
    """Requests of so many rows, one at a time."""
    found, seen = _closed(running, network, rows, 1, seconds)
    if rows not in seen:
        raise BenchError(f"the model statistics count no execution of {rows} rows")
    return found, seen


def _gap_us(running: Running, network: Network, in_flight: int, seconds: float) -> float:
    """Time between two batches, when one always waits."""
    found, seen = _closed(running, network, 1, in_flight, seconds)
    rows = sum(size * one.times for size, one in seen.items())
    busy_us = sum(one.busy_us for one in seen.values())
    whole_us = rows / found.per_s * 1e6
    return max(0.0, (whole_us - busy_us) / sum(one.times for one in seen.values()))


def _closed(
    running: Running, network: Network, rows: int, in_flight: int, seconds: float
) -> tuple[Run, ByRows]:
    inference = Inference(network.name, {"INPUT": np.repeat(network.sample(1), rows, axis=0)})
    requests = request_file(f"{network.name}-{rows}", [inference])
    load = Load(requests, in_flight=in_flight, warm_up_s=WARM_UP_S, duration_s=seconds)
    before = executions(running, network)
    found = steady(running, load)
    return found, between(before, executions(running, network))
