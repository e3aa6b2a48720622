"""Gold, Silver and Bronze tenants near and beyond capacity, one of them in bursts."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from sits_scheduling.batching import BatchPolicy
from sits_scheduling.tenants import Tenant, Tier
from sits_sim.cluster import mixed
from sits_sim.figures import Figure, Panel, Report, Series, at_least, at_most, plain
from sits_sim.ledger import End, Results
from sits_sim.load import Burst, noisy_neighbour
from sits_sim.mesh import HOP_NS, Mesh, Plan
from sits_sim.parallel import run_all
from sits_sim.progress import Progress
from sits_sim.scenarios.size import Size
from sits_sim.service_times import ENCODER_CPU
from sits_sim.workload import Workload, workload

INSTANCES: Final = 16
FRONTS: Final = 2
BATCH_ROWS: Final = 8
"""29 ms a batch: with one running and one waiting, the most urgent still make 118 ms."""
SLOTS: Final = 2
BYTES_PER_ROW: Final = 8 * 512 * 4
DURATION_S: Final = 75
"""Five bursts."""

TENANTS: Final = (
    Tenant("gold", Tier.GOLD),
    Tenant("silver-1", Tier.SILVER),
    Tenant("silver-2", Tier.SILVER),
    Tenant("bronze-1", Tier.BRONZE),
    Tenant("bronze-2", Tier.BRONZE),
    Tenant("bronze-noisy", Tier.BRONZE),
)
SHARES: Final = (0.15, 0.15, 0.15, 0.25, 0.18, 0.12)
"""Of the offered load. The last comes in bursts: 5 times its base for 3 s of every 15 s."""
NOISY: Final = 5

SLO_MS: Final = {Tier.GOLD: 118.0, Tier.SILVER: 203.0, Tier.BRONZE: 489.0}
BARS: Final = {Tier.GOLD: 0.998, Tier.SILVER: 0.982, Tier.BRONZE: 0.927}
NEAR, BEYOND = 0.95, 1.5


@dataclass(frozen=True, slots=True)
class Job:
    load: float
    duration_s: float
    seed: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """By tier: shares of all requests, and p99 of the answered. `worst_of_bound`: see
    `BoundWatch`; `bound_ms`: the largest bound that was given, at the mesh's capacity."""

    load: float
    attainment: dict[Tier, float]
    refused: dict[Tier, float]
    p99_ms: dict[Tier, float]
    wait_ms: dict[Tier, float]
    worst_of_bound: float
    bound_ms: float
    timeline: dict[Tier, list[float]]


def run(size: Size, progress: Progress) -> Report:
    duration_s = max(15.0, DURATION_S * size.scale)
    jobs = [Job(load, duration_s, size.seed) for load in (NEAR, BEYOND)]
    near, beyond = run_all(run_job, jobs, progress, "tenants", size.workers)
    return Report(parameters(size, duration_s), figures(near, beyond), [panel(near), panel(beyond)])


def parameters(size: Size, duration_s: float) -> dict[str, object]:
    return {
        "instances": INSTANCES,
        "capacity_per_s": round(capacity_per_s()),
        "seconds": duration_s,
        "seed": size.seed,
        "tenants": {t.name: share for t, share in zip(TENANTS, SHARES, strict=True)},
        "slo_ms": {tier.name.lower(): slo for tier, slo in SLO_MS.items()},
        "bursts": f"{TENANTS[NOISY].name}: 5x for 3 s in every 15 s",
    }


def capacity_per_s() -> float:
    """Rows of all instances in full micro-batches."""
    return INSTANCES * BATCH_ROWS * 1e6 / ENCODER_CPU.of(BATCH_ROWS)


def run_job(job: Job) -> Outcome:
    mesh = Mesh(mixed(INSTANCES), ENCODER_CPU, requests(job), plan(job.seed))
    results = mesh.run().results()
    watches = [front.watch for front in mesh.fronts if front.watch]
    by_tier = {tier: results.of_tenant(*members(tier)) for tier in Tier}
    return Outcome(
        job.load,
        {tier: found.attainment for tier, found in by_tier.items()},
        {
            tier: found.share(End.REFUSED) + found.share(End.EXPIRED)
            for tier, found in by_tier.items()
        },
        {tier: found.percentile_ms(99) for tier, found in by_tier.items()},
        {tier: found.percentile_ms(100) for tier, found in by_tier.items()},
        max(watch.worst for watch in watches),
        max(watch.largest_cost for watch in watches) * 1e3 / (capacity_per_s() / FRONTS),
        {tier: per_second(found, job.duration_s) for tier, found in by_tier.items()},
    )


def requests(job: Job) -> Workload:
    rng = np.random.default_rng(job.seed)
    rates = np.array(SHARES) * job.load * capacity_per_s()
    stream = noisy_neighbour(rates, NOISY, job.duration_s, rng, Burst())
    slo_s = np.array([SLO_MS[tenant.tier] / 1e3 for tenant in TENANTS])[stream.tenant]
    return workload(
        stream.at_s, np.ones(len(stream.at_s), np.int64), bytes_per_row=BYTES_PER_ROW,
        fronts=FRONTS, rng=rng, slo_s=slo_s, tenant=stream.tenant,
    )  # fmt: skip


def plan(seed: int) -> Plan:
    policy = BatchPolicy(BATCH_ROWS, lead_ns=2 * HOP_NS)
    return Plan(
        "topo_aware", policy, SLOTS, FRONTS, tenants=TENANTS, admission=True, watch=True, seed=seed
    )


def members(tier: Tier) -> list[int]:
    return [number for number, tenant in enumerate(TENANTS) if tenant.tier is tier]


def per_second(results: Results, duration_s: float) -> list[float]:
    """Share answered in time of the requests that came in each second."""
    second = results.at_s.astype(int)
    return [
        float(results.in_time[second == s].mean()) if (second == s).any() else 1.0
        for s in range(int(duration_s))
    ]


def figures(near: Outcome, beyond: Outcome) -> list[Figure]:
    found = [
        at_least(f"{tier.name.capitalize()} in time at 95 % load", near.attainment[tier], "",
                 BARS[tier])
        for tier in Tier
    ]  # fmt: skip
    gold, silver, bronze = (beyond.refused[tier] for tier in Tier)
    found += [
        at_least("Gold in time at 1.5 times the capacity", beyond.attainment[Tier.GOLD], "", 0.998),
        at_most("Silver shed at 1.5 times the capacity, of what Bronze is", silver / bronze, "", 1),
        at_most("worst of all waits, of the stated bound", beyond.worst_of_bound, "", 1),
        plain("the largest bound that was stated", beyond.bound_ms, "ms"),
        plain("Gold shed at 1.5 times the capacity", gold, ""),
        plain("Silver shed at 1.5 times the capacity", silver, ""),
        plain("Bronze shed at 1.5 times the capacity", bronze, ""),
    ]
    for outcome in (near, beyond):
        for tier in Tier:
            name = f"{tier.name.capitalize()} p99 at {outcome.load:g} of the capacity"
            found.append(plain(name, outcome.p99_ms[tier], "ms"))
    return found


def panel(outcome: Outcome) -> Panel:
    title = f"{outcome.load:g} of the capacity"
    series = [
        Series(tier.name.capitalize(), [float(s) for s in range(len(shares))], shares)
        for tier, shares in outcome.timeline.items()
    ]
    return Panel(title, "time, s", "answered in time", series)
