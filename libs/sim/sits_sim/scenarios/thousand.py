"""1,024 GPUs: topology-aware placement against random, the full mesh against a naive one."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from sits_sim.figures import Figure, Panel, Report, Series, at_least, at_most, higher, lower, plain
from sits_sim.gang_run import GangResult, GangTask, run_gangs
from sits_sim.parallel import cores, run_all
from sits_sim.progress import Progress
from sits_sim.scenarios.size import Size
from sits_sim.serving import (
    FULL,
    FULL_AT_RANDOM,
    NAIVE,
    Job,
    Point,
    System,
    batched_per_s,
    run_job,
    unbatched_per_s,
)

GPUS: Final = 1024
SLO_S: Final = 0.002
"""Ten times what one row takes alone."""

NAIVE_LOADS: Final = (0.5, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
FULL_LOADS: Final = (0.3, 0.6, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05)
HEADLINE_REQUESTS: Final = 750_000
SWEEP_REQUESTS: Final = {NAIVE.name: 150_000, FULL.name: 500_000}
"""At a load of 1; at others in proportion, so that all runs of a sweep last equally long."""
WITHIN_SLO: Final = 0.99
USUAL_LOAD: Final = 0.8
"""At which the full mesh is run with faults, and with random placement alone."""
USUAL_REQUESTS: Final = 300_000
LEAST_REQUESTS: Final = 500_000
LONGEST_S: Final = 600.0
GANG_REQUESTS: Final = 500_000
GANGS_PER_GPU_S: Final = 1.0
"""As much as random placement can bear: across nodes its collectives take many times longer."""


@dataclass(frozen=True, slots=True)
class Serving:
    """The sweep of each system, both at the naive mesh's saturation, and the full one at its
    usual load: placed at random, placed by topology, and while devices die."""

    naive: list[Point]
    full: list[Point]
    naive_saturated: Point
    full_there: Point
    at_random: Point
    by_topology: Point
    with_faults: Point

    @property
    def sweep(self) -> list[Point]:
        return [*self.naive, *self.full]


def run(size: Size, progress: Progress) -> Report:
    started_s = time.perf_counter()
    gangs = place(size, progress)
    found = serve(size, progress)
    figures = [*gang_figures(*gangs), *serving_figures(found)]
    figures += [
        at_least("requests simulated", requests_of(found), "", size.of(LEAST_REQUESTS)),
        at_most("time it took", time.perf_counter() - started_s, "s", LONGEST_S),
    ]
    figures += [figure for point in found.sweep for figure in sweep_figures(point)]
    return Report(parameters(size, found, gangs), figures, panels(found))


def parameters(
    size: Size, found: Serving, gangs: tuple[GangResult, GangResult]
) -> dict[str, object]:
    return {
        "gpus": gpus_of(size),
        "slo_ms": SLO_S * 1e3,
        "seed": size.seed,
        "naive_saturation_per_s": round(found.naive_saturated.offered_per_s),
        "requests_at_saturation": found.naive_saturated.requests,
        "requests_placed": gangs[0].requests,
        "cores": cores(),
    }


def requests_of(found: Serving) -> int:
    """Of the largest run: the one at the naive mesh's saturation."""
    return found.naive_saturated.requests


def place(size: Size, progress: Progress) -> tuple[GangResult, GangResult]:
    """The same jobs placed at random and by topology."""
    gpus = gpus_of(size)
    tasks = [
        GangTask(name, gpus, GANGS_PER_GPU_S * gpus, size.of(GANG_REQUESTS), size.seed)
        for name in ("random", "topo_aware")
    ]
    chance, aware = run_all(run_gangs, tasks, progress, "gangs", size.workers)
    return chance, aware


def gang_figures(chance: GangResult, aware: GangResult) -> list[Figure]:
    return [
        lower("mean collective time", aware.collective_ms, "ms", chance.collective_ms, 2.2),
        lower("load deviation over GPUs", aware.load_deviation_ms, "ms", chance.load_deviation_ms,
              4.1),
        plain("gangs inside one node, random", chance.in_one_node, ""),
        plain("gangs inside one node, topo_aware", aware.in_one_node, ""),
        plain("mean load of a GPU, random", chance.load_ms, "ms"),
        plain("mean load of a GPU, topo_aware", aware.load_ms, "ms"),
    ]  # fmt: skip


def gpus_of(size: Size) -> int:
    return size.of(GPUS, step=16, least=16)


def serve(size: Size, progress: Progress) -> Serving:
    gpus = gpus_of(size)
    naive_per_s, full_per_s = unbatched_per_s(gpus), batched_per_s(gpus)

    def job(system: System, rate_per_s: float, requests: int) -> Job:
        return Job(system, gpus, rate_per_s, size.of(requests), SLO_S, size.seed)

    # The longest first, so that no core waits for a long run at the end.
    jobs = [job(system, naive_per_s, HEADLINE_REQUESTS) for system in (NAIVE, FULL)]
    usual = [job(one, USUAL_LOAD * full_per_s, USUAL_REQUESTS) for one in (FULL_AT_RANDOM, FULL)]
    jobs += [*usual, replace(usual[-1], faults=True)]
    for system, most_per_s, loads in (
        (FULL, full_per_s, FULL_LOADS), (NAIVE, naive_per_s, NAIVE_LOADS)
    ):  # fmt: skip
        requests = SWEEP_REQUESTS[system.name]
        jobs += [job(system, x * most_per_s, round(x * requests)) for x in loads]
    naive, full, at_random, by_topology, faulty, *rest = run_all(
        run_job, jobs, progress, "serving", size.workers
    )
    end = len(FULL_LOADS)
    return Serving(rest[end:], rest[:end], naive, full, at_random, by_topology, faulty)


def best(points: Sequence[Point]) -> Point:
    """At its own best load: where most requests a second are answered in time."""
    return max(points, key=lambda point: point.goodput_per_s)


def knee(points: Sequence[Point]) -> Point:
    """The highest load at which 99 % of all requests are answered in time, and as many a
    second as come; else the lowest."""
    inside = [p for p in points if min(p.attainment, p.sustained) >= WITHIN_SLO]
    return max(inside or points[:1], key=lambda point: point.offered_per_s)


def serving_figures(found: Serving) -> list[Figure]:
    naive, full = found.naive_saturated, found.full_there
    at_best = best([*found.naive, naive]), best(found.full)
    return [
        lower("p99 at the naive mesh's saturation", full.p99_ms, "ms", naive.p99_ms, 11.3),
        higher(
            "goodput at the best load", at_best[1].goodput_per_s, "1/s",
            at_best[0].goodput_per_s, 8.1,
        ),
        at_least("utilisation at the knee", knee(found.full).utilisation, "", 0.924),
        plain("load deviation at 80 % load, only placed at random",
              found.at_random.load_deviation_ms, "ms"),
        plain("load deviation at 80 % load", found.by_topology.load_deviation_ms, "ms"),
        plain("p99 at 80 % load, only placed at random", found.at_random.p99_ms, "ms"),
        plain("p99 at 80 % load", found.by_topology.p99_ms, "ms"),
        plain("answered in time while 1 % of GPUs die and 2 % are slow",
              found.with_faults.attainment, ""),
        plain("p99 while 1 % of GPUs die and 2 % are slow", found.with_faults.p99_ms, "ms"),
    ]  # fmt: skip


def sweep_figures(point: Point) -> list[Figure]:
    at = f"{point.system} at {point.offered_per_s:,.0f}/s:"
    return [
        plain(f"{at} p50", point.p50_ms, "ms"),
        plain(f"{at} p99", point.p99_ms, "ms"),
        plain(f"{at} answered in time", point.attainment, ""),
        plain(f"{at} goodput", point.goodput_per_s, "1/s"),
        plain(f"{at} utilisation", point.utilisation, ""),
        plain(f"{at} rows a batch", point.rows_per_batch, ""),
    ]


def panels(found: Serving) -> list[Panel]:
    both = {"naive": [*found.naive, found.naive_saturated], "full": found.full}

    def series(value: str) -> list[Series]:
        return [
            Series(name, [p.offered_per_s / 1e6 for p in points],
                   [getattr(p, value) for p in points])
            for name, points in both.items()
        ]  # fmt: skip

    return [
        Panel("latency", "offered, million/s", "p99, ms", series("p99_ms"), log_y=True),
        Panel("goodput", "offered, million/s", "in time, 1/s", series("goodput_per_s")),
    ]
