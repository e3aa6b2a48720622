"""What the simulator has to know of a mesh that runs: run times by rows, and the way to them."""

from collections.abc import Mapping
from dataclasses import dataclass
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
SATURATED: Final = {1: 2, 32: 64}
"""Rows of a batch → requests of one row in flight that keep an instance in such batches."""
WARM_UP_S: Final = 0.3


class Executions(NamedTuple):
    """How often, and how long an instance was busy with them."""

    times: int
    busy_us: float


NONE: Final = Executions(0, 0.0)
ByRows = Mapping[int, Executions]


@dataclass(frozen=True, slots=True)
class Calibration:
    """`busy_us` by rows: staging of inputs, the run itself, packing of outputs, of requests one
    at a time; `lone_us`: the whole of the smallest one; means. `gap_us`: what an instance does
    between two batches of one request and of the most; it shows only when it always has work.
    `spread` by rows: p99 over p50 of the whole; small ones suffer more from whatever else runs.
    """

    busy_us: Mapping[int, float]
    lone_us: float
    gap_us: tuple[float, float]
    spread: Mapping[int, float]

    def measured(self, seen: ByRows | None = None) -> Measured:
        """What the simulator is told, for a load in which those executions were seen: run times
        longer by as much as theirs were, and the spread of such sizes. None = alone."""
        ends = ROWS[0], ROWS[-1]
        run_us = {
            rows: us + float(np.interp(rows, ends, self.gap_us))
            for rows, us in self.busy_us.items()
        }
        way_us = max(0.0, self.lone_us - run_us[1])
        if seen is None:
            return Measured(run_us, way_us)
        times = sum(one.times for one in seen.values())
        spread = sum(one.times * _at(rows, self.spread) for rows, one in seen.items()) / times
        drift = self._drift(seen)
        return Measured({r: us * drift for r, us in run_us.items()}, way_us, spread=spread)

    def _drift(self, seen: ByRows) -> float:
        """How many times longer executions under load took than those alone of as many rows:
        a shared machine is not equally fast at all times."""
        alone_us = sum(one.times * _at(rows, self.busy_us) for rows, one in seen.items())
        return sum(one.busy_us for one in seen.values()) / alone_us


def _at(rows: int, known: Mapping[int, float]) -> float:
    return float(np.interp(rows, list(known), list(known.values())))


def measure(running: Running, network: Network, seconds: float) -> Calibration:
    """`seconds` for each size and each end. Raises `BenchError`."""
    lone = {rows: _lone(running, network, rows, seconds) for rows in ROWS}
    least, most = (_gap_us(running, network, n, seconds) for n in SATURATED.values())
    return Calibration(
        {rows: seen[rows].busy_us / seen[rows].times for rows, (_, seen) in lone.items()},
        lone[1][0].answered.mean * 1e3,
        (least, most),
        {rows: run.answered.p99 / run.answered.p50 for rows, (run, _) in lone.items()},
    )


def seconds_of(seconds: float) -> float:
    """How long `measure` takes."""
    return (len(ROWS) + len(SATURATED)) * (WARM_UP_S + seconds)


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
