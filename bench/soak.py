"""Run the mesh at 70 % load for long: memory flat, slots back to zero, nothing left behind."""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from sits_bench import machine, repositories
from sits_bench.client_memory import SHM
from sits_bench.compare import Plan, request_file, steady
from sits_bench.copies import counters
from sits_bench.loadgen import BenchError, Load, Measured, build, run
from sits_bench.mesh_system import MeshSystem
from sits_bench.messages import Inference, random_floats
from sits_bench.processes import family, rss_bytes
from sits_bench.show import finish, main, options
from sits_bench.system import Running, until
from sits_bench.watching import watching
from sits_cli.mesh import Mesh
from sits_sim.figures import Figure, Report, at_most, plain
from sits_sim.load import poisson

SHARE = 0.7
SLICE_S = 30.0
"""One run of the load generator; memory is read between two."""
MIX = [
    *[Inference(repositories.ECHO, {"INPUT": random_floats(1, 1, 256)})] * 14,
    Inference(repositories.ECHO, {"INPUT": random_floats(2, 1, 16 << 10)}),
    Inference(repositories.ECHO, {"INPUT": random_floats(3, 1, 128 << 10)}),
]
GROWTH = 1.05
"""The last quarter of the readings against the second one: the first is warming up."""
LEAST_READINGS = 8
IDLE_S = 10.0
SLOTS, QUEUED = r"sits_pool_slots ", r"sits_preprocess_queued "


@dataclass(slots=True)
class Log:
    """What was seen, by service, over time."""

    minutes: list[float] = field(default_factory=list)
    bytes_of: dict[str, list[float]] = field(default_factory=dict)
    answered: int = 0
    failed: int = 0
    errors: list[str] = field(default_factory=list)

    def add(self, found: Measured) -> None:
        self.answered += found.answered.count
        self.failed += found.refused.count + found.unanswered + found.unsent
        if found.first_error:
            self.errors.append(found.first_error)

    def read(self, mesh: Mesh, start_s: float) -> None:
        self.minutes.append((time.monotonic() - start_s) / 60)
        for name in mesh.names():
            pid = mesh.pid(name)
            used = rss_bytes(family(pid)) if pid is not None else 0
            self.bytes_of.setdefault(name, []).append(used)

    def growth(self, name: str) -> float:
        readings = self.bytes_of[name]
        quarter = max(1, len(readings) // 4)
        early, late = readings[quarter : 2 * quarter] or readings[:1], readings[-quarter:]
        return statistics.median(late) / statistics.median(early)


def soak(
    system: MeshSystem, minutes: float, tell: Callable[[str, float], None], log: Log
) -> list[Figure]:
    with system.running() as (mesh, running):
        requests = request_file("soak", MIX)
        capacity = steady(running, Plan(duration_s=5.0).closed(requests, 64))
        tell("capacity", 6.5)
        start_s, number = time.monotonic(), 0
        while time.monotonic() < start_s + minutes * 60:
            number += 1
            found = run(_slice(requests, SHARE * capacity.per_s, number), running.target)
            log.add(found)
            log.read(mesh, start_s)
            tell(f"{log.answered:,} answered", SLICE_S)
        left_over = _left_when_idle(running)
    return [*_memory(log), *left_over, *_requests(log, capacity.per_s)]


def _slice(requests: "os.PathLike[str]", rate_per_s: float, seed: int) -> Load:
    """Poisson arrivals over the mix, in turn."""
    at_s = poisson(rate_per_s, SLICE_S, np.random.default_rng(seed))
    which = np.arange(len(at_s)) % len(MIX)
    return Load(
        request_file("soak", MIX), at_s=at_s, which=which, warm_up_s=0.0, duration_s=SLICE_S
    )


def _memory(log: Log) -> list[Figure]:
    figures = []
    for name, readings in log.bytes_of.items():
        title = f"soak.memory.{name}: memory at the end"
        figures.append(plain(title, readings[-1] / 2**20, "MiB"))
        if len(readings) >= LEAST_READINGS:
            title = f"soak.growth.{name}: its last quarter against the second"
            figures.append(at_most(title, log.growth(name), "", GROWTH))
    return figures


def _left_when_idle(running: Running) -> list[Figure]:
    """What is still held soon after the last answer."""

    def held() -> float:
        return sum(counters(running.metrics, name) or 0.0 for name in (SLOTS, QUEUED))

    with suppress(BenchError):
        until(lambda: held() == 0, IDLE_S, "idle mesh")
    return [at_most("soak.slots: payload slots and requests held when idle", held(), "", 0)]


def _requests(log: Log, capacity: float) -> list[Figure]:
    return [
        plain("soak.capacity: requests/s at 64 in flight", capacity, "/s"),
        plain("soak.answered: requests answered", log.answered, ""),
        at_most("soak.failed: requests refused or without an answer", log.failed, "", 0),
    ]


def killed(system: MeshSystem) -> None:
    """Kill everything at once under load, let it come back, and stop it."""
    with system.running() as (mesh, running):
        requests = request_file("soak", MIX)
        steady(running, Plan(warm_up_s=0.2, duration_s=0.5).closed(requests, 64))
        for name in mesh.names():
            mesh.kill(name)
        until(lambda: all(mesh.ready(name) for name in mesh.names()), 60.0, "mesh after the kill")


def left_files(prefix: str) -> Sequence[str]:
    return sorted(file.name for file in SHM.glob(f"sits-{prefix}-*"))


def body() -> int:
    parser = options(__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long (60)")
    given = parser.parse_args()
    minutes = min(given.minutes, 2.0) if given.quick else given.minutes
    parameters = {**machine.describe(), "minutes": minutes, "load": SHARE}
    build()
    prefix = f"soak-{os.getpid()}"
    env = {"SITS_REDIS_PREFIX": prefix}
    system = MeshSystem("mesh, soak", [repositories.echo()], env)
    log = Log()
    with watching() as progress:
        progress.expect(minutes * 60 + 30)
        found = soak(system, minutes, progress.step, log)
        after_stop = left_files(prefix)
        killed(system)
        progress.step("killed and restarted", 20)
    after_kill = left_files(prefix)
    if log.errors:
        parameters["errors"] = log.errors[:10]
    found += [
        at_most("soak.files: left in shared memory after stop", len(after_stop), "", 0),
        at_most("soak.files_kill: after kill -9 of all, restart and stop", len(after_kill), "", 0),
    ]
    return finish("soak", Report(parameters, found, []), given)


if __name__ == "__main__":
    main(body)
