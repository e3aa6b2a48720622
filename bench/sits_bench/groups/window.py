"""How late a batch leaves when its window ends, by the stamps that it carries."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from sits_bench import checks, fake_executors, repositories
from sits_bench.compare import Plan, request_file, steady
from sits_bench.group import Bench
from sits_bench.groups.front import KILOBYTE
from sits_bench.loadgen import BenchError
from sits_bench.mesh_system import MeshSystem
from sits_protos.v1.link_pb2 import CloseReason, LinkMessage
from sits_sim.figures import Figure, at_most, plain

WINDOW_US: Final = 100
START_S: Final = 8.0
LEAST_BATCHES: Final = 100
_MORE: Final = f"dynamic_batching {{ max_queue_delay_microseconds: {WINDOW_US} }}"
_SYSTEM: Final = MeshSystem("mesh, window", [repositories.echo(more=_MORE)])


@dataclass(frozen=True, slots=True)
class Window:
    """One request at a time, so that each waits out the whole window, alone. Half of the
    batches go to an executor of ours, which reads their stamps."""

    name: str = "window"

    def seconds(self, plan: Plan) -> float:
        return START_S + plan.warm_up_s + plan.duration_s

    def run(self, bench: Bench) -> list[Figure]:
        load = bench.plan.closed(request_file("1-kb", [KILOBYTE]), 1)
        recorder = fake_executors.Recorder(overshoot_us)
        with (
            _SYSTEM.running() as (mesh, running),
            fake_executors.registered(mesh, repositories.ECHO, 1, recorder, slots=2),
        ):
            checks.echoes(running, KILOBYTE)
            steady(running, load)
        bench.progress.step("window", self.seconds(bench.plan))
        return figures(np.array(recorder.values))


def overshoot_us(message: LinkMessage) -> float:
    """From the end of the window to the closing; NaN when something else closed it."""
    header = message.batch
    if header.close_reason != CloseReason.CLOSE_REASON_WINDOW:
        return float("nan")
    return (header.closed_unix_ns - header.oldest_queued_unix_ns) / 1e3 - WINDOW_US


def figures(late_us: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]") -> list[Figure]:
    late_us = late_us[~np.isnan(late_us)]
    if len(late_us) < LEAST_BATCHES:
        raise BenchError(f"only {len(late_us)} batches were closed by their window")
    p50, p99 = (float(value) for value in np.percentile(late_us, [50, 99]))
    return [
        at_most("window.p50: 100 µs window, overshoot p50", p50, "µs", 50),
        at_most("window.p99: 100 µs window, overshoot p99", p99, "µs", 150),
        plain("window.batches: how many of them", len(late_us), ""),
    ]


WINDOW: Final = Window()
