"""How long the dispatcher's decision takes, from 64 to 8,192 instances.

Measured is `Placing.place` as the dispatcher calls it: strategy topo_aware, predictions, the
record for explanations and the reservation. Payloads lie on random hosts of eight instances,
and load comes and goes so that half of all slots are taken. "Nearly full" leaves one instance
in a hundred with room, where a sample finds nothing and all are looked at. Sizes alternate
within each round; figures are medians over the rounds. Bars are on the time that passes; the
processor time beside it is what it would be on a machine with nothing else to do.
"""

import random
import statistics
import time
from collections import deque
from typing import Final, NamedTuple

import numpy as np

from sits_bench import machine
from sits_bench.show import finish, main, options
from sits_scheduling.affinity import AffinityMap, Place
from sits_scheduling.batching import BatchPolicy, BatchQueue
from sits_scheduling.candidates import Executor, ExecutorTable, Reservation
from sits_scheduling.deadlines import Admission
from sits_scheduling.entry import Entry
from sits_scheduling.explain import DecisionLog
from sits_scheduling.gate import Gate
from sits_scheduling.placing import Batch, Placing
from sits_scheduling.service_times import ServiceTimes
from sits_scheduling.switchboard import Switchboard
from sits_scheduling.tenants import Tenant, Tenants, Tier
from sits_sim.figures import Figure, Panel, Report, Series, at_most, plain

SIZES: Final = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
NEARLY_FULL: Final = (1024, 8192)
PER_HOST: Final = 8
SLOTS: Final = 2
MODEL: Final = "model/1"
ROWS: Final = 32
RUN_NS: Final = 5_000_000
FULL: Final = 0.995
LIMIT_US: Final = {64: 100.0, 1024: 200.0}
"""Bars of p99."""


class Spent(NamedTuple):
    """Microseconds."""

    p50: float
    p99: float
    cpu_p99: float


Took = tuple[int, int]
"""Nanoseconds that passed, and of processor time."""


class Room(NamedTuple):
    """What the front door knows of the instances."""

    parallel: int
    idle: int


class Fleet:
    """A table of `size` instances on which `held` batches are under way at any time."""

    def __init__(self, size: int, held: int) -> None:
        self._rng = random.Random(size)  # noqa: S311 - ties and samples
        self._hosts = max(1, size // PER_HOST)
        times = ServiceTimes()
        times.observe(MODEL, ROWS, "e0", RUN_NS)
        strategies = Switchboard("topo_aware", self._rng)
        self._placing = Placing(table(size), times, strategies, self._rng, DecisionLog())
        self._held: deque[Reservation] = deque()
        self._decided = 0
        for _ in range(held):
            self.decide()

    def round(self, decisions: int) -> list[Took]:
        """Of each of so many decisions; for each a batch comes back."""
        took = []
        for _ in range(decisions):
            self._held.popleft().release(self._now_ns)
            took.append(self.decide())
        return took

    def decide(self) -> Took:
        self._decided += 1
        place = Place(f"h{self._rng.randrange(self._hosts)}", 0)
        batch = Batch(MODEL, ROWS, 1 << 20, place, (f"r{self._decided}",))
        started = now()
        placed = self._placing.place(batch, self._now_ns)
        took = since(started)
        if placed is None:
            raise RuntimeError("the fleet is full: more is held than it has slots")
        self._held.append(placed.reservation)
        return took

    @property
    def _now_ns(self) -> int:
        return 10_000 * self._decided


def table(size: int) -> ExecutorTable:
    made = ExecutorTable()
    weights: dict[str, dict[tuple[str, str], float]] = {}
    for number in range(size):
        host, device = f"h{number // PER_HOST}", f"gpu{number % PER_HOST}"
        made.add(Executor(f"e{number}", host, device))
        made.serve(f"e{number}", MODEL, SLOTS, 1)
        weights.setdefault(host, {})["cpu:0", device] = 0.3 + 0.05 * (number % PER_HOST)
    made.set_affinity(AffinityMap(weights))
    return made


def placements(rounds: int, decisions: int) -> tuple[dict[int, Spent], dict[int, Spent]]:
    """By size, half full and nearly full; sizes alternate in every round."""
    half = {size: Fleet(size, size) for size in SIZES}
    full = {size: Fleet(size, int(SLOTS * size * FULL)) for size in NEARLY_FULL}
    runs: dict[Fleet, list[Spent]] = {fleet: [] for fleet in (*half.values(), *full.values())}
    for fleet in runs:
        fleet.round(decisions // 4)  # what is kept for every place is made
    for _ in range(rounds):
        for fleet, spent in runs.items():
            spent.append(quantiles(fleet.round(decisions)))
    return (
        {size: medians(runs[fleet]) for size, fleet in half.items()},
        {size: medians(runs[fleet]) for size, fleet in full.items()},
    )


def admissions(rounds: int, decisions: int) -> Spent:
    """`Gate.judge` with three tenants that have work waiting."""
    tenants = Tenants([Tenant("gold", Tier.GOLD), Tenant("silver", Tier.SILVER)])
    times = ServiceTimes()
    times.observe(MODEL, ROWS, "e0", RUN_NS)
    queue: BatchQueue[int] = BatchQueue(BatchPolicy(ROWS), tenants=tenants)
    for number in range(300):
        queue.add(Entry(number, 1, 100, 0, tenant=("gold", "silver", "other")[number % 3]))
    gate, room = Gate(MODEL, tenants, times, Admission()), Room(parallel=8, idle=0)
    runs = []
    for _ in range(rounds):
        took = []
        for number in range(decisions):
            entry = Entry(number, 1, 100, number, number + RUN_NS, tenant="gold")
            started = now()
            gate.judge(entry, queue, room, ROWS, number)
            took.append(since(started))
        runs.append(quantiles(took))
    return medians(runs)


def now() -> Took:
    return time.perf_counter_ns(), time.thread_time_ns()


def since(started: Took) -> Took:
    passed, spent = now()
    return passed - started[0], spent - started[1]


def quantiles(took: list[Took]) -> Spent:
    passed, spent = np.array(took).T / 1e3
    p50, p99 = np.percentile(passed, (50, 99))
    return Spent(float(p50), float(p99), float(np.percentile(spent, 99)))


def medians(runs: list[Spent]) -> Spent:
    return Spent(*(statistics.median(column) for column in zip(*runs, strict=True)))


def growth(spent: dict[int, Spent]) -> float:
    """Exponent of the median over the number of instances, least squares in logarithms."""
    values = [one.p50 for one in spent.values()]
    return float(np.polyfit(np.log(list(spent)), np.log(values), 1)[0])


def figures_of(size: int, spent: Spent) -> list[Figure]:
    name = f"{size:,} instances"
    limit = LIMIT_US.get(size)
    p99 = f"{name}: p99"
    return [
        plain(f"{name}: p50", spent.p50, "µs"),
        at_most(p99, spent.p99, "µs", limit) if limit else plain(p99, spent.p99, "µs"),
        plain(f"{name}: p99 of processor time", spent.cpu_p99, "µs"),
    ]


def report(rounds: int, decisions: int) -> Report:
    half, full = placements(rounds, decisions)
    judged = admissions(rounds, decisions)
    figures = [figure for size in SIZES for figure in figures_of(size, half[size])]
    figures += [plain(f"{size:,} instances, nearly full: p99", full[size].p99, "µs")
                for size in NEARLY_FULL]  # fmt: skip
    figures += [
        at_most("growth from 64 to 8,192 instances, exponent of the median", growth(half), "", 0.9),
        at_most("admission of a request: p50", judged.p50, "µs", 10.0),
        plain("admission of a request: p99", judged.p99, "µs"),
    ]
    sizes = [float(size) for size in SIZES]
    lines = [
        Series("p50", sizes, [half[size].p50 for size in SIZES]),
        Series("p99", sizes, [half[size].p99 for size in SIZES]),
    ]
    panel = Panel("Decision", "instances", "µs", lines)
    parameters = {**machine.describe(), "rounds": rounds, "decisions": decisions, "rows": ROWS}
    return Report(parameters, figures, [panel])


def body() -> int:
    given = options(__doc__).parse_args()
    rounds, decisions = (3, 1000) if given.quick else (9, 4000)
    return finish("decide", report(rounds, decisions), given)


if __name__ == "__main__":
    main(body)
