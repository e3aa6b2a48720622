"""One run of jobs for one or several GPUs, placed by a gang placement, as a job of its own."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from sits_scheduling import fabric
from sits_scheduling.gangs import GangPlacement, RandomGangs, TopologyGangs
from sits_sim import traces
from sits_sim.clock import NS_PER_US, Clock, Process
from sits_sim.cluster import Cluster, mixed
from sits_sim.gangs import GangDevices, GangJob
from sits_sim.load import Floats, Ints
from sits_sim.service_times import TRANSFORMER
from sits_sim.serving import TOKENS_PER_ROW

BYTES_PER_TOKEN: Final = 384 * 2
"""What an all-reduce of the measured transformer carries: its width in fp16."""
ALL_REDUCES: Final = 12
"""Two a layer, six layers, as tensor parallelism does them (Megatron-LM)."""
GANG_FROM_TOKENS: Final = (8192, 16384, 32768)
"""Longer inputs than these run on 2, 4 and 8 GPUs."""
SAMPLES: Final = 200

PLACEMENTS: Final[dict[str, Callable[[fabric.Cluster, random.Random], GangPlacement]]] = {
    "random": RandomGangs,
    "topo_aware": TopologyGangs,
}


@dataclass(frozen=True, slots=True)
class GangTask:
    placement: str
    gpus: int
    offered_per_s: float
    requests: int
    seed: int


@dataclass(frozen=True, slots=True)
class GangResult:
    """`collective_ms`: all-reduces of one job, mean over the jobs of several GPUs."""

    placement: str
    requests: int
    gangs: int
    collective_ms: float
    load_deviation_ms: float
    load_ms: float
    latency_p99_ms: float
    in_one_node: float


@dataclass(frozen=True, slots=True)
class Inputs:
    """By request: when it comes, its tokens, the GPUs it needs and how long each computes."""

    at_ns: Ints
    tokens: Ints
    size: Ints
    compute_ns: Ints


class GangRun:
    """Jobs come, are placed at once, and stand in the lines of their GPUs."""

    def __init__(self, cluster: Cluster, placement: GangPlacement, inputs: Inputs) -> None:
        self._clock = Clock()
        self._cluster, self._placement, self._inputs = cluster, placement, inputs
        self.devices = GangDevices(self._clock, len(cluster.gpus))
        # What the dispatcher expects each GPU to be busy for.
        self._wait_us = np.zeros(len(cluster.gpus))
        self._allowed = np.ones(len(cluster.gpus), bool)
        self.collectives_ns: list[int] = []
        self.latencies_ns: list[int] = []
        self.loads: list[Floats] = []
        self.in_one_node = 0

    def run(self) -> None:
        self._clock.process(self._arrivals())
        end_ns = int(self._inputs.at_ns[-1])
        self._clock.every(max(1, end_ns // SAMPLES), self._sample, end_ns)
        self._clock.run()

    def _arrivals(self) -> Process:
        now = 0
        columns = (self._inputs.at_ns, self._inputs.tokens, self._inputs.size,
                   self._inputs.compute_ns)  # fmt: skip
        values = zip(*(column.tolist() for column in columns), strict=True)
        for number, (at, tokens, size, compute_ns) in enumerate(values):
            if at > now:
                yield self._clock.wait(at - now)
                now = at
            self._start(number, tokens * BYTES_PER_TOKEN, size, compute_ns)

    def _start(self, number: int, size_bytes: int, size: int, compute_ns: int) -> None:
        gang = self._placement.place(size, ALL_REDUCES * size_bytes, self._wait_us, self._allowed)
        if gang is None:
            raise RuntimeError(f"no {size} of {len(self._allowed)} GPUs for job {number}")
        members = [self._cluster.gpus[device] for device in gang.devices]
        collective_ns = int(
            ALL_REDUCES * self._cluster.all_reduce_us(members, size_bytes) * NS_PER_US
        )
        if size > 1:
            self.collectives_ns.append(collective_ns)
            self.in_one_node += len({gpu.host for gpu in members}) == 1
        expected_us = compute_ns / NS_PER_US + gang.collective_us
        self._expect(gang.devices, expected_us)
        release = partial(self._finished, gang.devices, expected_us, self._clock.now_ns)
        self.devices.submit(GangJob(number, gang.devices, compute_ns + collective_ns, release))

    def _finished(self, devices: tuple[int, ...], expected_us: float, came_ns: int) -> None:
        self.latencies_ns.append(self._clock.now_ns - came_ns)
        self._expect(devices, -expected_us)

    def _expect(self, devices: tuple[int, ...], work_us: float) -> None:
        for device in devices:
            self._wait_us[device] = max(0.0, self._wait_us[device] + work_us)

    def _sample(self) -> None:
        self.loads.append(np.array(self.devices.loads_ms()))


def run_gangs(task: GangTask) -> GangResult:
    cluster = mixed(task.gpus)
    rng = random.Random(task.seed)  # noqa: S311
    placement = PLACEMENTS[task.placement](fabric_of(cluster), rng)
    run = GangRun(cluster, placement, inputs(task))
    run.run()
    settled = run.loads[len(run.loads) // 5 :]
    return GangResult(
        task.placement,
        len(run.latencies_ns),
        len(run.collectives_ns),
        float(np.mean(run.collectives_ns)) / 1e6,
        float(np.mean([loads.std() for loads in settled])),
        float(np.mean([loads.mean() for loads in settled])),
        float(np.percentile(run.latencies_ns, 99)) / 1e6,
        run.in_one_node / len(run.collectives_ns),
    )


def fabric_of(cluster: Cluster) -> fabric.Cluster:
    """What the dispatcher knows of it: the costs that topology publishes for each host."""
    return fabric.Cluster(
        [
            fabric.Node.of_costs(host, list(shape.gpus), shape.costs_s_per_mb)
            for host, shape in cluster.hosts.items()
        ]
    )


def inputs(task: GangTask) -> Inputs:
    """Prompts of the traces; the long ones need several GPUs, which share the computing."""
    rng = np.random.default_rng(task.seed)
    copies = max(1, task.gpus // 8 // len(traces.NAMES))
    duration_s = task.requests / task.offered_per_s
    replayed = traces.mixed(task.offered_per_s, duration_s, copies, rng)
    tokens = replayed.input_tokens
    size = 1 << np.searchsorted(np.array(GANG_FROM_TOKENS), tokens)
    rows = -(-tokens // (size * TOKENS_PER_ROW))
    compute_ns = np.array([int(TRANSFORMER.of(int(r)) * NS_PER_US) for r in rows])
    return Inputs((replayed.at_s * 1e9).astype(np.int64), tokens, size, compute_ns)
