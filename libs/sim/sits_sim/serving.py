"""One run of a serving mesh at one offered load, as a job that a process can be given."""

from dataclasses import dataclass, replace

import numpy as np

from sits_scheduling.batching import BatchPolicy
from sits_sim import traces
from sits_sim.cluster import GPUS_PER_HOST, mixed
from sits_sim.faults import some
from sits_sim.load import Ints
from sits_sim.mesh import HOP_NS, Mesh, Plan
from sits_sim.service_times import TRANSFORMER, ServiceTimes
from sits_sim.workload import Workload, workload

TOKENS_PER_ROW = 128
BYTES_PER_ROW = TOKENS_PER_ROW * 8
"""Token numbers, 64 bits each."""


@dataclass(frozen=True, slots=True)
class System:
    """How a mesh is run. `batch_rows` 0 = every request alone; `slots` 0 = no limit."""

    name: str
    strategy: str
    batch_rows: int
    slots: int
    admission: bool


NAIVE = System("naive", "random", 0, 0, admission=False)
"""First come first served: any device at random, no batches, no look at its queue."""

FULL = System("full", "topo_aware", TRANSFORMER.max_rows, 3, admission=True)

FULL_AT_RANDOM = replace(FULL, name="full, placed at random", strategy="random")
"""Only the placement differs from `FULL`."""


@dataclass(frozen=True, slots=True)
class Job:
    system: System
    gpus: int
    offered_per_s: float
    requests: int
    slo_s: float
    seed: int
    faults: bool = False


@dataclass(frozen=True, slots=True)
class Point:
    """What one run showed. Latencies are of answered requests, shares are of all; the offered
    rate is what came, which a trace makes somewhat more or less than was asked for."""

    system: str
    offered_per_s: float
    requests: int
    p50_ms: float
    p99_ms: float
    attainment: float
    goodput_per_s: float
    utilisation: float
    rows_per_batch: float
    decisions_per_s: float
    load_deviation_ms: float

    @property
    def sustained(self) -> float:
        """Goodput of what is offered. Unlike the share in time it does not credit overload
        with what a short run has not yet let wait."""
        return self.goodput_per_s / self.offered_per_s


def run_job(job: Job) -> Point:
    cluster = mixed(job.gpus)
    load = requests(job)
    mesh = Mesh(cluster, TRANSFORMER, load, _plan(job, int(load.at_ns[-1])))
    warm_s, end_s = mesh.plan.warm_up * load.duration_s, load.duration_s
    everything = mesh.run().results()
    results = everything.after(warm_s)
    came_per_s = len(results) / (end_s - warm_s)
    return Point(
        job.system.name,
        came_per_s,
        len(load),
        results.percentile_ms(50),
        results.percentile_ms(99),
        results.attainment,
        everything.goodput_per_s(warm_s, end_s),
        mesh.meter.utilisation,
        sum(device.rows for device in mesh.devices) / mesh.dispatcher.decisions,
        mesh.dispatcher.decisions / load.duration_s,
        mesh.meter.load_deviation_ms,
    )


def _plan(job: Job, end_ns: int) -> Plan:
    system = job.system
    # Ahead of any run: the processor time of a front door is not modelled.
    policy = BatchPolicy(system.batch_rows, lead_ns=2 * HOP_NS, least_run_ns=0)
    fronts = job.gpus // GPUS_PER_HOST
    faults = some(job.gpus, end_ns, np.random.default_rng(job.seed)) if job.faults else ()
    return Plan(
        system.strategy,
        policy,
        system.slots,
        fronts,
        admission=system.admission,
        faults=faults,
        seed=job.seed,
    )


def requests(job: Job) -> Workload:
    """Texts of the lengths that the traces' answers had, cut into rows of 128 tokens, as a
    moderation model reads what a language model wrote."""
    rng = np.random.default_rng(job.seed)
    fronts = job.gpus // GPUS_PER_HOST
    duration_s = job.requests / job.offered_per_s
    copies = max(1, fronts // len(traces.NAMES))
    replayed = traces.mixed(job.offered_per_s, duration_s, copies, rng)
    rows = rows_of(replayed.output_tokens)
    return workload(
        replayed.at_s, rows, bytes_per_row=BYTES_PER_ROW, fronts=fronts, rng=rng, slo_s=job.slo_s
    )


def rows_of(tokens: Ints) -> Ints:
    """At least one."""
    return -(-np.maximum(tokens, 1) // TOKENS_PER_ROW)


def unbatched_per_s(gpus: int, service: ServiceTimes = TRANSFORMER) -> float:
    """Requests that `gpus` devices can do one by one: the naive mesh's own saturation."""
    return gpus * 1e6 / _mean([service.of(int(rows)) for rows in _sample()])


def batched_per_s(gpus: int, service: ServiceTimes = TRANSFORMER) -> float:
    """Requests that they can do in full batches."""
    return gpus * service.rows_per_s() / _mean(_sample().tolist())


def _sample() -> Ints:
    """Rows of the traces' requests, each trace with the same weight."""
    picks = np.random.default_rng(0)
    columns = [traces.trace(name).output_tokens for name in traces.NAMES]
    return rows_of(np.concatenate([picks.choice(column, 20_000) for column in columns]))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
