"""A whole mesh in the simulator: front doors, a dispatcher and devices around one workload.

Every decision is a call into `sits_scheduling`; what is in here is what the world does:
requests come, messages take their time, batches run.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from math import ceil
from typing import Final

import numpy as np

from sits_scheduling.affinity import Place
from sits_scheduling.batching import BatchPolicy, BatchQueue
from sits_scheduling.deadlines import Admission
from sits_scheduling.entry import Entry
from sits_scheduling.gate import Gate
from sits_scheduling.orders import ORDERS
from sits_scheduling.service_times import ServiceTimes
from sits_scheduling.tenants import Tenant, Tenants
from sits_sim.batch import MODEL, Batch
from sits_sim.bounds import BoundWatch
from sits_sim.clock import NS_PER_US, Clock, Process
from sits_sim.cluster import Cluster
from sits_sim.device import Device
from sits_sim.dispatch import Dispatcher
from sits_sim.faults import Fault, happen
from sits_sim.front import Front
from sits_sim.ledger import End, Ledger
from sits_sim.link_times import send_us
from sits_sim.meter import Meter
from sits_sim.service_times import ServiceTimes as Measured
from sits_sim.workload import Workload, ready_ns

HOP_NS: Final = 116 * NS_PER_US
"""One way between two services: half the round trip of a gRPC stream, see docs/simulator.md."""

_NOISE_VALUES: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class Plan:
    """How the mesh is set up. `slots`: batches a device is given at once; 0 = any number.
    `tenants`: by the numbers of the workload. `watch`: hold queues against their bounds.
    `front_ns`: what a front door works on each request, one after the other. `warm_up`: part
    of the run that fills the queues and is not measured.
    """

    strategy: str
    policy: BatchPolicy
    slots: int
    fronts: int
    order: str = "priority"
    tenants: tuple[Tenant, ...] = (Tenant("all"),)
    admission: bool = False
    watch: bool = False
    hop_ns: int = HOP_NS
    front_ns: int = 0
    faults: tuple[Fault, ...] = ()
    warm_up: float = 0.2
    seed: int = 1


class Mesh:
    """One run of a workload over a cluster."""

    def __init__(self, cluster: Cluster, service: Measured, load: Workload, plan: Plan) -> None:
        self.clock = Clock()
        self.cluster, self.load, self.plan = cluster, load, plan
        self.ledger = Ledger(load)
        self._places = _front_places(cluster, plan.fronts)
        slots = plan.slots or len(load) + 1
        self.devices = _devices(self.clock, cluster, service, plan.seed, self._done)
        self.dispatcher = Dispatcher(
            self.clock, cluster, plan.strategy, slots, self._places, random.Random(plan.seed),  # noqa: S311
            self._deliver, self._failed,
        )  # fmt: skip
        self.fronts = [self._front(number, slots) for number in range(plan.fronts)]
        end_ns = int(load.at_ns[-1])
        self.meter = Meter(self.clock, self.devices, int(plan.warm_up * end_ns), end_ns)

    def __repr__(self) -> str:
        return f"<Mesh {self.cluster!r} {self.ledger!r} {self.dispatcher!r}>"

    def run(self) -> Ledger:
        """Until every request has its end."""
        for fault in self.plan.faults:
            self.clock.process(happen(self.clock, fault, self))
        self.clock.process(self._arrivals())
        self.clock.run()
        return self.ledger

    # faults

    def kill(self, device: int) -> None:
        """What it held is lost with it, what is on the way comes back from its door."""
        held = self.devices[device].die()
        self.dispatcher.leave(device)
        self._tell_fronts()
        self.dispatcher.lost(held)

    def revive(self, device: int) -> None:
        self.devices[device].revive()
        self.dispatcher.join(device)
        self._tell_fronts()

    def slow(self, device: int, slowness: float) -> None:
        self.devices[device].slowness = slowness

    def _tell_fronts(self) -> None:
        """Each front door's equal part of what all executors take."""
        slots, parallel = self.dispatcher.credits()
        for front in self.fronts:
            front.set_credits(ceil(slots / len(self.fronts)), ceil(parallel / len(self.fronts)))

    # requests

    def _arrivals(self) -> Process:
        now = 0
        fronts = self.load.front.tolist()
        for entry in self._entries():
            if entry.arrived_ns > now:
                yield self.clock.wait(entry.arrived_ns - now)
                now = entry.arrived_ns
            self.fronts[fronts[entry.item]].arrive(entry)

    def _entries(self) -> Iterator[Entry[int]]:
        """In the order in which the front doors have read them."""
        load, names = self.load, [tenant.name for tenant in self.plan.tenants]
        read_ns = ready_ns(load, self.plan.front_ns)
        order = np.argsort(read_ns, kind="stable")
        columns = (order, load.rows[order], load.payload_bytes[order], read_ns[order],
                   load.deadline_ns[order], load.tenant[order])  # fmt: skip
        values = zip(*(column.tolist() for column in columns), strict=True)
        for request, rows, size, at_ns, due_ns, tenant in values:
            yield Entry(request, rows, size, at_ns, due_ns, tenant=names[tenant])

    # batches

    def _front(self, number: int, slots: int) -> Front:
        plan = self.plan
        share = len(self.devices) / plan.fronts
        window, instances = ceil(slots * share), ceil(share)
        tenants = Tenants(plan.tenants)
        queue: BatchQueue[int] = BatchQueue(plan.policy, ORDERS[plan.order](), tenants)
        gate = Gate(MODEL, tenants, ServiceTimes(), Admission(0)) if plan.admission else None
        watch = BoundWatch(queue) if plan.watch else None
        return Front(
            number, self.clock, queue, window, instances, self._sent, self._end_here, gate, watch
        )

    def _end_here(self, request: int, end: End) -> None:
        self.ledger.close(request, end, self.clock.now_ns)

    def _sent(self, batch: Batch) -> None:
        self.dispatcher.batch(batch)

    def _deliver(self, batch: Batch, device: int) -> None:
        took_ns = 2 * self.plan.hop_ns + self._transfer_ns(batch, device)
        self.clock.after(took_ns, partial(self._delivered, batch, device))

    def _delivered(self, batch: Batch, device: int) -> None:
        if not self.devices[device].submit(batch):
            self.dispatcher.lost([batch])

    def _done(self, batch: Batch, took_ns: int) -> None:
        self.clock.after(self.plan.hop_ns, partial(self.dispatcher.result, batch, took_ns))
        self.clock.after(2 * self.plan.hop_ns, partial(self._returned, batch, took_ns))

    def _returned(self, batch: Batch, took_ns: int) -> None:
        for request in batch.requests:
            self._end_here(request, End.ANSWERED)
        self.fronts[batch.front].answered(batch, took_ns)

    def _failed(self, batch: Batch) -> None:
        for request in batch.requests:
            self._end_here(request, End.FAILED)
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
    service: Measured,
    seed: int,
    done: Callable[[Batch, int], None],
) -> list[Device[Batch]]:
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
