"""A world for governance: queues, collectives, memory and links that can be made to suffer,
and that obey what a plan says."""

from collections import deque
from dataclasses import dataclass
from math import ceil
from typing import Final

import numpy as np

from sits_scheduling.governance import Plan
from sits_scheduling.tenants import Tier
from sits_sim.clock import NS_PER_MS, NS_PER_S, NS_PER_US, Clock, Process
from sits_sim.cluster import mixed
from sits_sim.service_times import ENCODER_CPU, TRANSFORMER

INSTANCES: Final = 16
ROWS: Final = 8
TIERS: Final = (Tier.GOLD, Tier.SILVER, Tier.BRONZE)
OFFERED: Final = (0.15, 0.30, 0.55)
CHEAPER: Final = 0.5
"""Run time of the cheaper version, of the usual one's. An assumption, not a measurement."""
SCALE_OUT_NS, SCALE_IN_NS = 5 * NS_PER_S, 60 * NS_PER_S
"""New instances take a while; autoscalers wait before they take them away (the default of
Kubernetes is 300 s)."""

COLLECTIVES_A_SAMPLE: Final = 50_000
GANG: Final = 8
SIZE_BYTES: Final = 32 * 128 * 384 * 2
"""One all-reduce of a full batch of the measured transformer: rows, tokens, width, fp16."""
COMPUTE_BATCHES: Final = 4
"""Batches that a gang computes for twelve such all-reduces."""
DEVICES: Final = 64


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong while it lasts. `load` is of all instances; `sharing` is how many
    collectives share the links of each; `skew` is how unevenly memory fills."""

    load: float = 0.6
    failure: float = 0.0
    skew: float = 0.0
    sharing: int = 1


class Queue:
    """Batches wait for one of many instances, which an autoscaler adds and takes away."""

    def __init__(self, clock: Clock, rng: np.random.Generator) -> None:
        self._clock, self._rng = clock, rng
        self._waiting: deque[int] = deque()
        self._busy = 0
        self._waits_ms: list[float] = []
        self._totals_ms: list[float] = []
        self._wanted, self._lower_since_ns = INSTANCES, 0
        self.instances, self.load = INSTANCES, 0.0
        self.shed: tuple[Tier, ...] = ()
        self.degraded = False

    def arrivals(self, until_ns: int) -> Process:
        while self._clock.now_ns < until_ns:
            per_s = self.load * INSTANCES * 1e6 / ENCODER_CPU.of(ROWS)
            yield self._clock.wait(int(self._rng.exponential(NS_PER_S / per_s)))
            tier = TIERS[self._rng.choice(len(TIERS), p=OFFERED)]
            if tier not in self.shed:
                self._waiting.append(self._clock.now_ns)
                self._start()

    def take_times_ms(self) -> tuple[float, float]:
        """Median wait and p95 of the whole time since the last call. When nothing has
        started, the first in line tells how long one waits."""
        now = self._clock.now_ns
        first = [(now - came) / NS_PER_MS for came in list(self._waiting)[:1]]
        waits = self._waits_ms or first or [0.0]
        totals = self._totals_ms or waits
        self._waits_ms, self._totals_ms = [], []
        return float(np.median(waits)), float(np.percentile(totals, 95))

    def scale(self, factor: float) -> None:
        """What the autoscaler does when it is asked, once a sample, for so much capacity."""
        now, wanted = self._clock.now_ns, ceil(INSTANCES * factor)
        if wanted > self._wanted:
            self._wanted = wanted
            self._clock.after(SCALE_OUT_NS, lambda: self._resize(wanted))
        if wanted >= self._wanted:
            self._lower_since_ns = now
        elif now - self._lower_since_ns >= SCALE_IN_NS:
            self._wanted = self.instances = wanted

    def _resize(self, instances: int) -> None:
        self.instances = instances
        self._start()

    def _start(self) -> None:
        while self._waiting and self._busy < self.instances:
            self._run(self._waiting.popleft())

    def _run(self, came_ns: int) -> None:
        self._busy += 1
        self._waits_ms.append((self._clock.now_ns - came_ns) / NS_PER_MS)
        run_us = ENCODER_CPU.of(ROWS) * (CHEAPER if self.degraded else 1.0)
        self._clock.after(int(run_us * NS_PER_US), lambda: self._done(came_ns))

    def _done(self, came_ns: int) -> None:
        self._busy -= 1
        self._totals_ms.append((self._clock.now_ns - came_ns) / NS_PER_MS)
        self._start()


class Memory:
    """How full devices are. Trouble fills some more than others and leaves holes, until work
    is placed anew; what was moved stays where it is."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._used = np.full(DEVICES, 0.5)
        self._moved = False

    def look(self, skew: float, replace: bool) -> tuple[float, float]:
        """Spread, and the part of what is free in one piece on the worst device."""
        self._moved = bool(skew) and (self._moved or replace)
        uneven = 0.0 if self._moved else skew
        aim = 0.5 + uneven * np.linspace(-0.5, 0.5, DEVICES)
        self._used += 0.5 * (aim - self._used) + self._rng.normal(0.0, 0.005, DEVICES)
        return float(self._used.max() - self._used.min()), 0.15 if uneven else 0.8


class Collectives:
    """Which part of them fails, and which part of the time they take. Broken circuits keep
    what fails out of use, and moved gangs have their links for themselves, until the trouble
    is over."""

    def __init__(self, rng: np.random.Generator) -> None:
        cluster = mixed(16)
        one_us = cluster.all_reduce_us(cluster.gpus[:GANG], SIZE_BYTES)
        self._rng, self._collective_us = rng, 12 * one_us
        self._compute_us = COMPUTE_BATCHES * TRANSFORMER.of(TRANSFORMER.max_rows)
        self._excluded = self._moved = False

    def failed(self, part: float, break_circuits: bool) -> float:
        self._excluded = bool(part) and (self._excluded or break_circuits)
        chance = 0.0 if self._excluded else part
        return float(self._rng.binomial(COLLECTIVES_A_SAMPLE, chance) / COLLECTIVES_A_SAMPLE)

    def share(self, sharing: int, replace: bool) -> float:
        self._moved = sharing > 1 and (self._moved or replace)
        collective_us = self._collective_us * (1 if self._moved else sharing)
        share = collective_us / (collective_us + self._compute_us)
        return float(share + self._rng.normal(0.0, 0.01))


def obey(queue: Queue, plan: Plan) -> None:
    """What a plan says about requests and capacity."""
    queue.scale(plan.scale_factor)
    queue.shed, queue.degraded = plan.shed, plan.degrade
