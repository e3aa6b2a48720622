"""Collectives and requests on the same links: what the communication quota is worth."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from sits_scheduling.communication_quota import LinkQuota
from sits_sim.clock import NS_PER_S, NS_PER_US, Clock
from sits_sim.figures import Figure, Panel, Report, Series, at_most, lower, plain
from sits_sim.link import SharedLink
from sits_sim.link_times import H100, send_us
from sits_sim.parallel import run_all
from sits_sim.pipeline import Gang, Gate, Pipeline
from sits_sim.progress import Progress
from sits_sim.scenarios.size import Size
from sits_sim.service_times import TRANSFORMER

HOSTS: Final = 16
PIPELINES: Final = 2
GANGS: Final = 3
DURATION_S: Final = 2.0

LARGE_BYTES: Final = 64 << 20
"""An all-reduce over two hosts sends its size over the link of each."""
FLOWS: Final = 8
"""GPUs of a host that take part in it, each sending its part at the same time."""
HAND_OFF_BYTES: Final = TRANSFORMER.max_rows * 128 * 384 * 2
"""Activations of a full batch of the measured transformer: rows, tokens, width, fp16."""
COMPUTE_MS: Final = 2.0
"""Mean time that a gang computes between two collectives."""
LATENCY_NS: Final = round(send_us(H100, 2048, same_node=False)) * NS_PER_US


@dataclass(frozen=True, slots=True)
class Job:
    """`gangs` a host; `quota`: collectives are held to their share of the link."""

    name: str
    gangs: int
    quota: bool
    hosts: int
    duration_s: float
    seed: int


@dataclass(frozen=True, slots=True)
class Outcome:
    name: str
    delay_ms: float
    delay_p99_ms: float
    batches_per_s: float
    collective_ms: float
    carried: float
    delays_ms: list[float]


def run(size: Size, progress: Progress) -> Report:
    hosts, duration_s = size.of(HOSTS, least=2), DURATION_S * max(0.1, size.scale)
    jobs = [
        Job(name, gangs, quota, hosts, duration_s, size.seed)
        for name, gangs, quota in (
            ("no collectives", 0, False), ("without quota", GANGS, False), ("quota", GANGS, True),
        )
    ]  # fmt: skip
    outcomes = run_all(run_job, jobs, progress, "contention", size.workers)
    return Report(parameters(size, hosts, duration_s), figures(*outcomes), [panel(outcomes)])


def parameters(size: Size, hosts: int, duration_s: float) -> dict[str, object]:
    return {
        "hosts": hosts,
        "gpus": hosts * 8,
        "seconds": duration_s,
        "seed": size.seed,
        "link_gbps": bytes_per_ns(),
        "pipelines_a_host": PIPELINES,
        "hand_off_bytes": HAND_OFF_BYTES,
        "gangs_a_host": GANGS,
        "collective_bytes": LARGE_BYTES,
    }


def bytes_per_ns() -> float:
    """Of one host's link, as measured with large messages between two H100 hosts."""
    return LARGE_BYTES / (send_us(H100, LARGE_BYTES, same_node=False) * NS_PER_US)


def run_job(job: Job) -> Outcome:
    clock, rng = Clock(), np.random.default_rng(job.seed)
    links = [SharedLink(clock, bytes_per_ns()) for _ in range(job.hosts)]
    pipelines: list[Pipeline] = []
    gangs: list[Gang] = []
    for link in links:
        sending, gate = quota_of(link, clock) if job.quota else (_nobody_asks, _open)
        pipelines += (
            Pipeline(clock, link, _stage_ns(rng), HAND_OFF_BYTES, LATENCY_NS, sending)
            for _ in range(PIPELINES)
        )
        gangs += (
            Gang(clock, link, gate, LARGE_BYTES, FLOWS, _compute_ns(rng)) for _ in range(job.gangs)
        )
    until_ns = int(job.duration_s * NS_PER_S)
    for pipeline in pipelines:
        pipeline.start(until_ns)
    for gang in gangs:
        gang.start(until_ns)
    clock.run_until(until_ns)
    return outcome(job, links, pipelines, gangs)


def quota_of(link: SharedLink, clock: Clock) -> tuple[Callable[[int], None], Gate]:
    """Requests are counted, collectives ask."""
    quota = LinkQuota(link.bytes_per_ns * NS_PER_S)
    return (
        lambda size_bytes: quota.request(size_bytes, clock.now_ns),
        lambda size_bytes: quota.wait_ns(size_bytes, clock.now_ns),
    )


def outcome(
    job: Job, links: list[SharedLink], pipelines: list[Pipeline], gangs: list[Gang]
) -> Outcome:
    delays_ms = np.concatenate([p.delays_ns for p in pipelines]) / 1e6
    collectives_ms = np.concatenate([gang.times_ns for gang in gangs] or [[0]]) / 1e6
    capacity = links[0].bytes_per_ns * job.duration_s * NS_PER_S
    return Outcome(
        job.name,
        float(delays_ms.mean()),
        float(np.percentile(delays_ms, 99)),
        sum(p.finished for p in pipelines) / job.duration_s,
        float(collectives_ms.mean()),
        float(np.mean([link.carried for link in links])) / capacity,
        np.percentile(delays_ms, range(101)).tolist(),
    )


def figures(alone: Outcome, without: Outcome, quota: Outcome) -> list[Figure]:
    found = [
        lower("cross-GPU delay under contention", quota.delay_ms, "ms", without.delay_ms, 4.4),
        at_most(
            "throughput lost to collectives", lost(quota, alone), "", 0.06, lost(without, alone)
        ),
    ]
    for one in (alone, without, quota):
        found += [
            plain(f"{one.name}: delay", one.delay_ms, "ms"),
            plain(f"{one.name}: delay p99", one.delay_p99_ms, "ms"),
            plain(f"{one.name}: batches", one.batches_per_s, "1/s"),
            plain(f"{one.name}: time of a collective", one.collective_ms, "ms"),
            plain(f"{one.name}: use of the links", one.carried, ""),
        ]
    return found


def lost(one: Outcome, alone: Outcome) -> float:
    return 1.0 - one.batches_per_s / alone.batches_per_s


def panel(outcomes: list[Outcome]) -> Panel:
    percents = [float(p) for p in range(101)]
    series = [Series(one.name, one.delays_ms, percents) for one in outcomes]
    return Panel("hand-offs between hosts", "delay, ms", "percent below", series)


def _stage_ns(rng: np.random.Generator) -> Callable[[], int]:
    full_ns = TRANSFORMER.table_ns()[-1]
    noise = TRANSFORMER.noise(1 << 14, rng)
    return lambda: int(full_ns * noise[rng.integers(len(noise))])


def _compute_ns(rng: np.random.Generator) -> Callable[[], int]:
    return lambda: int(rng.exponential(COMPUTE_MS * 1e6))


def _nobody_asks(size_bytes: int) -> None:
    """Nobody counts requests."""


def _open(size_bytes: int) -> int:
    """Nobody holds collectives back."""
    return 0
