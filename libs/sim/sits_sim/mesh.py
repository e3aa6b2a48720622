"""A whole mesh in the simulator: front doors, a dispatcher and devices around one workload.

Every decision is a call into `sits_scheduling`; what is in here is what the world does:
requests come, messages take their time, batches run.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Final

import numpy as np

from sits_scheduling.affinity import Place
from sits_scheduling.batching import BatchPolicy, BatchQueue
from sits_scheduling.entry import Entry
from sits_sim.clock import NS_PER_US, Clock, Process
from sits_sim.cluster import Cluster
from sits_sim.device import Batch, Device
from sits_sim.dispatch import Dispatcher
from sits_sim.front import Front
from sits_sim.ledger import End, Ledger
from sits_sim.link_times import send_us
from sits_sim.meter import Meter
from sits_sim.service_times import ServiceTimes
from sits_sim.workload import Workload

HOP_NS: Final = 116 * NS_PER_US
"""One way between two services: half the round trip of a gRPC stream, see docs/simulator.md."""

PROGRESS_STEP: Final = 2000
_NOISE_VALUES: Final = 1 << 14

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How the mesh is set up. `slots`: batches a device is given at once; 0 = any number.
    `warm_up`: part of the run that fills the queues and is not measured.
    """

    strategy: str
    policy: BatchPolicy
    slots: int
    fronts: int
    warm_up: float = 0.2
    seed: int = 1


class Mesh:
    """One run of a workload over a cluster."""

    def __init__(self, cluster: Cluster, service: ServiceTimes, load: Workload, plan: Plan) -> None:
        self.clock = Clock()
        self.cluster, self.load, self.plan = cluster, load, plan
        self.ledger = Ledger(load)
        self._places = _front_places(cluster, plan.fronts)
        slots = plan.slots or len(load) + 1
        self.devices = _devices(self.clock, cluster, service, plan.seed, self._done)
        self.dispatcher = Dispatcher(
            cluster, plan.strategy, slots, self._places, random.Random(plan.seed),  # noqa: S311
            self._deliver, self._failed,
        )  # fmt: skip
        self.fronts = [self._front(number, slots) for number in range(plan.fronts)]
        end_ns = int(load.at_ns[-1])
        self.meter = Meter(self.clock, self.devices, int(plan.warm_up * end_ns), end_ns)

    def __repr__(self) -> str:
        return f"<Mesh {self.cluster!r} {self.ledger!r} {self.dispatcher!r}>"

    def run(self, progress: Progress = lambda _: None) -> Ledger:
        """Until every request has its end. `progress` is told how many more have come."""
        self.clock.process(self._arrivals(progress))
        self.clock.run()
        return self.ledger

    # requests

    def _arrivals(self, progress: Progress) -> Process:
        now = 0
        fronts = self.load.front.tolist()
        for entry in self._entries():
            if entry.arrived_ns > now:
                yield self.clock.wait(entry.arrived_ns - now)
                now = entry.arrived_ns
            self.fronts[fronts[entry.item]].arrive(entry)
            if entry.item % PROGRESS_STEP == 0:
                progress(PROGRESS_STEP)

    def _entries(self) -> Iterator[Entry[int]]:
        load = self.load
        columns = (load.rows, load.payload_bytes, load.at_ns, load.deadline_ns)
        values = zip(*(column.tolist() for column in columns), strict=True)
        for request, (rows, size, at_ns, due_ns) in enumerate(values):
            yield Entry(request, rows, size, at_ns, due_ns)

    # batches

    def _front(self, number: int, slots: int) -> Front:
        share = len(self.devices) / self.plan.fronts
        window, instances = -int(-slots * share // 1), -int(-share // 1)
        queue: BatchQueue[int] = BatchQueue(self.plan.policy)
        return Front(number, self.clock, queue, window, instances, self._sent)

    def _sent(self, batch: Batch) -> None:
        self.dispatcher.batch(batch)

    def _deliver(self, batch: Batch, device: int) -> None:
        took_ns = 2 * HOP_NS + self._transfer_ns(batch, device)
        self.clock.after(took_ns, partial(self._delivered, batch, device))

    def _delivered(self, batch: Batch, device: int) -> None:
        if not self.devices[device].submit(batch):
            self.dispatcher.lost([batch])

    def _done(self, batch: Batch, took_ns: int) -> None:
        self.clock.after(HOP_NS, partial(self.dispatcher.result, batch))
        self.clock.after(2 * HOP_NS, partial(self._returned, batch, took_ns))

    def _returned(self, batch: Batch, took_ns: int) -> None:
        now = self.clock.now_ns
        for request in batch.requests:
            self.ledger.close(request, End.ANSWERED, now)
        self.fronts[batch.front].answered(batch, took_ns)

    def _failed(self, batch: Batch) -> None:
        now = self.clock.now_ns
        for request in batch.requests:
            self.ledger.close(request, End.FAILED, now)
        self.fronts[batch.front].answered(batch, 0)

    def _transfer_ns(self, batch: Batch, device: int) -> int:
        """The payload's way to another host, beyond the hop itself; on its own host it lies
        in shared memory."""
        gpu = self.cluster.gpus[device]
        if gpu.host == self._places[batch.front].host:
            return 0
        return int(send_us(gpu.shape.table, batch.payload_bytes, same_node=False) * NS_PER_US)


def _devices(
    clock: Clock,
    cluster: Cluster,
    service: ServiceTimes,
    seed: int,
    done: Callable[[Batch, int], None],
) -> list[Device]:
    values = service.noise(_NOISE_VALUES, np.random.default_rng(seed)).tolist()
    noise = cycle(values).__next__
    return [Device(clock, service.table_ns(), noise, done) for _ in cluster.gpus]


def _front_places(cluster: Cluster, fronts: int) -> list[Place]:
    """Front doors are spread over the hosts and, there, over the CPU nodes."""
    hosts = list(cluster.hosts.items())
    places = []
    for number in range(fronts):
        host, shape = hosts[number % len(hosts)]
        cpus = sorted(int(cpu.removeprefix("cpu:")) for cpu in shape.cpus)
        turn = number // len(hosts)
        places.append(Place(host, cpus[turn % len(cpus)] if cpus else -1))
    return places
