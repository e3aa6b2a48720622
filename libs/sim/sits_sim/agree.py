"""What the simulator says of a mesh that stands on one machine, from its measured times.

`sits bench agree` measures a real mesh, gives what it measured to `predict`, and compares.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sits_scheduling.batching import BatchPolicy
from sits_sim.cluster import Cluster, build
from sits_sim.faults import Fault
from sits_sim.load import Floats
from sits_sim.mesh import Mesh, Plan
from sits_sim.service_times import Z_P99, ServiceTimes
from sits_sim.workload import workload


@dataclass(frozen=True, slots=True)
class Measured:
    """Of one mesh with one model.

    `run_us`: mean run time by rows. `spread`: p99 over p50 of one size. `way_us`: what a
    request takes on top of its run when nothing else is there, the whole way through all
    services and back. `front_us`: what the front door works on each request, one after the
    other (its processor time a request). `pace`: from which second of the load on runs take how
    many times as long, each until the next.
    """

    run_us: dict[int, float]
    way_us: float
    front_us: float = 0.0
    spread: float = 1.0
    pace: Sequence[tuple[float, float]] = ()

    def service(self) -> ServiceTimes:
        rows = tuple(sorted(self.run_us))
        # Log-normal, as `ServiceTimes.noise`: the median is that part of the mean.
        median = float(np.exp(-0.5 * (np.log(self.spread) / Z_P99) ** 2))
        return ServiceTimes(
            "measured", rows, tuple(self.run_us[r] * median for r in rows), self.spread
        )

    def mean_us(self, rows: int) -> float:
        """Of a batch no larger than the largest that was measured."""
        known = sorted(self.run_us)
        return float(np.interp(rows, known, [self.run_us[r] for r in known]))


@dataclass(frozen=True, slots=True)
class Setup:
    """The mesh that was measured. `slots`: batches that executors announce for each instance."""

    instances: int
    policy: BatchPolicy
    slots: int = 2
    strategy: str = "topo_aware"
    fronts: int = 1


@dataclass(frozen=True, slots=True)
class Prediction:
    offered_per_s: float
    throughput_per_s: float
    p50_ms: float
    p99_ms: float
    utilisation: float


def capacity_per_s(measured: Measured, setup: Setup) -> float:
    """Requests of one row that the instances, and before them the front doors, can do."""
    rows = setup.policy.max_rows or 1
    devices = setup.instances * rows * 1e6 / measured.mean_us(rows)
    return min(devices, setup.fronts * 1e6 / measured.front_us) if measured.front_us else devices


def predict(
    measured: Measured, setup: Setup, at_s: Floats, warm_up_s: float = 0.0, seed: int = 1
) -> Prediction:
    """Requests of one row that come at `at_s`; those of the warm-up are not counted."""
    rng = np.random.default_rng(seed)
    rows = np.ones(len(at_s), np.int64)
    load = workload(at_s, rows, bytes_per_row=0, fronts=setup.fronts, rng=rng)
    hop_ns = int(max(0.0, measured.way_us - measured.front_us) * 1e3 / 4)
    plan = Plan(
        setup.strategy, setup.policy, setup.slots, setup.fronts, hop_ns=hop_ns,
        front_ns=int(measured.front_us * 1e3), faults=tuple(paces(measured, setup)),
        warm_up=warm_up_s / load.duration_s, seed=seed,
    )  # fmt: skip
    mesh = Mesh(one_host(setup.instances), measured.service(), load, plan)
    results = mesh.run().results()
    counted = results.after(warm_up_s)
    return Prediction(
        len(load) / load.duration_s,
        results.goodput_per_s(warm_up_s, load.duration_s),
        counted.percentile_ms(50),
        counted.percentile_ms(99),
        mesh.meter.utilisation,
    )


def paces(measured: Measured, setup: Setup) -> Iterator[Fault]:
    """The machine's pace, as slowness of each instance. After the last one it is as usual."""
    ends_s = [at_s for at_s, _ in measured.pace[1:]]
    for (at_s, times), end_s in zip(measured.pace, ends_s, strict=False):
        at_ns, end_ns = int(at_s * 1e9), int(end_s * 1e9)
        for device in range(setup.instances):
            # It ends a moment before the next one starts: both at once would be in any order.
            yield Fault(device, at_ns, end_ns - at_ns - 1, times)


def one_host(instances: int) -> Cluster:
    """So many instances, all of them near the front door."""
    whole = build({"h100_nvswitch": -(-instances // 8)})
    return Cluster(whole.gpus[:instances], whole.hosts)
