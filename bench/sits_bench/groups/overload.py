"""Twice the capacity, in an open loop: what is still answered in time, and how fast."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from sits_bench import checks, peers
from sits_bench.bars import at_least_times, at_most_times
from sits_bench.compare import Found, Plan, cpu_us, p99_ms, per_s, request_file, run, steady
from sits_bench.group import Bench
from sits_bench.groups.networks import mesh
from sits_bench.loadgen import BenchError, Load, Measured
from sits_bench.onnx_models import MLP, TRANSFORMER, Network
from sits_bench.peers import Triton
from sits_bench.servers import Refusing
from sits_bench.system import Running, System
from sits_sim.figures import Figure, at_least, plain
from sits_sim.load import poisson

TIMES: Final = 2.0
IN_FLIGHT: Final = 64
CONNECTIONS: Final = 8
QUEUE: Final = 64
"""Triton's max_queue_size; it knows no other defence."""
DEADLINE: Final = 2.0
"""Each request has this many times the p99 at capacity, as `grpc-timeout`; so does Triton's."""
START_S: Final = 13.0
CAPACITY, OVER, REFUSING = "capacity", "overload", Refusing().name
GOODPUT: Final = {MLP.name: 0.8, TRANSFORMER.name: 0.95}


@dataclass(frozen=True, slots=True)
class Overload:
    network: Network

    @property
    def name(self) -> str:
        return f"overload_{self.network.name}"

    def seconds(self, plan: Plan) -> float:
        return plan.rounds * (START_S + 4 * (plan.warm_up_s + self._duration_s(plan)))

    def _duration_s(self, plan: Plan) -> float:
        return plan.duration_s * (2.0 if self.network is TRANSFORMER else 1.0)

    def run(self, bench: Bench) -> list[Figure]:
        found = Found()
        for number in range(bench.plan.rounds):
            self._round(bench, found, number)
        bench.keep(self.name, found)
        if not found.has("triton"):
            bench.lacks(f"{self.name} with triton: it is not installed, or lost all connections")
        return self._figures(found)

    def _round(self, bench: Bench, found: Found, number: int) -> None:
        """Ours first: its capacity says what is offered to both."""
        step = partial(bench.progress.step, f"{self.name}: mesh")
        with self._started(mesh(self.network)) as running:
            capacity = steady(running, self._closed(bench.plan))
            found.add("mesh", CAPACITY, capacity)
            load = self._open(bench.plan, capacity, number)
            found.add("mesh", OVER, run(running, load))
        with Refusing().start() as running:
            found.add(REFUSING, OVER, run(running, load))
        step(START_S / 2 + 3 * load.seconds)
        if peers.installed("triton"):
            self._triton(bench, found, load)

    def _triton(self, bench: Bench, found: Found, load: Load) -> None:
        """Under overload it may end its connections: then this round has no figure of it."""
        try:
            with self._started(Triton(self.network, QUEUE)) as running:
                found.add("triton", OVER, run(running, load))
        except BenchError as error:
            bench.lacks(f"a round of {self.name} with triton: {error}")
        bench.progress.step(f"{self.name}: triton", START_S / 2 + load.seconds)

    @contextmanager
    def _started(self, system: System) -> Iterator[Running]:
        with system.start() as running:
            checks.serves(running, self.network)
            yield running

    def _closed(self, plan: Plan) -> Load:
        requests = request_file(self.network.name, [self.network.inference()])
        return replace(plan.closed(requests, IN_FLIGHT), duration_s=self._duration_s(plan))

    def _open(self, plan: Plan, capacity: Measured, seed: int) -> Load:
        """Poisson arrivals, each with a deadline."""
        closed = self._closed(plan)
        rng = np.random.default_rng(seed)
        return replace(
            closed,
            in_flight=0,
            at_s=poisson(TIMES * capacity.per_s, closed.seconds, rng),
            connections=CONNECTIONS,
            timeout_ms=DEADLINE * capacity.answered.p99,
        )

    def _figures(self, found: Found) -> list[Figure]:
        name, text = self.name, f"{self.network.name}, twice the capacity"
        capacity = found.median("mesh", CAPACITY, per_s)
        admitted = found.median("mesh", OVER, per_s)
        figures = [
            at_least(f"{name}.goodput: {text}, goodput of capacity",
                     admitted / capacity, "", GOODPUT[self.network.name]),
            at_most_times(
                f"{name}.p99: {text}, p99 of what is admitted, against that at capacity",
                found.median("mesh", OVER, _admitted_p99_ms), "ms",
                found.median("mesh", CAPACITY, p99_ms), 2.0,
            ),
            plain(f"{name}.refused: share refused", found.median("mesh", OVER, _refused), ""),
            plain(f"{name}.expired: share without an answer in time",
                  found.median("mesh", OVER, _expired), ""),
            plain(f"{name}.reconnects: connections that the front door ended",
                  found.median("mesh", OVER, _reconnects), ""),
            plain(f"{name}.refusal_p99: how fast refusals come, p99",
                  found.median("mesh", OVER, _refusal_ms), "ms"),
            plain(f"{name}.refusal_cpu: CPU a request without answer, once the others have theirs",
                  _refusal_cpu_us(found), "µs"),
            plain(f"{name}.pushback: share of refusals that say when to come again",
                  found.median("mesh", OVER, _pushback), ""),
            plain(f"{name}.refuse_all: share of this machine that client and a server take which "
                  "only refuses", found.median(REFUSING, OVER, _share), ""),
            plain(f"{name}.left: goodput of capacity that the rest of the machine allows",
                  _left(found), ""),
        ]  # fmt: skip
        if found.has("triton"):
            other = found.median("triton", OVER, per_s)
            title = f"{text}, admitted, against Triton with a queue of {QUEUE} offered the same"
            figures.append(at_least_times(f"{name}.triton: {title}", admitted, "req/s", other, 3.0))
        return figures


def _admitted_p99_ms(run: Measured) -> float:
    """Nothing answered is no fast answer."""
    return run.answered.p99 if run.answered.count else float("inf")


def _refused(run: Measured) -> float:
    return run.refused_share


def _expired(run: Measured) -> float:
    return run.expired.count / max(1, sum(run.statuses.values()))


def _reconnects(run: Measured) -> float:
    return run.reconnects


def _refusal_ms(run: Measured) -> float:
    return run.refused.p99


def _refusal_cpu_us(found: Found) -> float:
    """What is left of the CPU time when each answered request has taken what it takes at
    capacity. An estimate: batches are larger under overload, so it errs to our advantage."""
    each_us = found.median("mesh", CAPACITY, cpu_us)

    def left(run: Measured) -> float:
        refused = run.failed - run.held
        return max(0.0, run.cpu_s * 1e6 - run.ok * each_us) / refused if refused > 0 else 0.0

    return found.median("mesh", OVER, left)


def _share(run: Measured) -> float:
    """Of all processors, the client included."""
    ended = run.ok + run.failed
    return (run.cpu_s + run.own_cpu_us * 1e-6 * ended) / (run.seconds * _processors())


def _processors() -> int:
    return len(os.sched_getaffinity(0))


def _left(found: Found) -> float:
    """Where every call costs what it takes to hear and refuse it, and each answer the rest of what
    it takes at capacity. An estimate: larger batches and a machine without a pause cost less."""
    idle_us = 1e6 * _processors() * max(0.0, 1.0 - found.median(REFUSING, OVER, _share))
    heard_us = found.median(REFUSING, OVER, _each_us)
    more_us = max(1e-9, found.median("mesh", CAPACITY, cpu_us) - heard_us)
    return min(1.0, idle_us / more_us / found.median("mesh", CAPACITY, per_s))


def _each_us(run: Measured) -> float:
    return run.cpu_s * 1e6 / max(1, run.ok + run.failed)


def _pushback(run: Measured) -> float:
    return run.pushbacks / max(1, run.refused.count)


SMALL: Final = Overload(MLP)
LARGE: Final = Overload(TRANSFORMER)
