"""What it costs that there are many: tenants, models, executors."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import grpc

from sits_bench import checks, fake_executors, repositories
from sits_bench.bars import at_least_times
from sits_bench.compare import Found, Plan, per_s, request_file, steady
from sits_bench.fake_executors import fill, hold
from sits_bench.group import Bench
from sits_bench.groups.front import KILOBYTE
from sits_bench.loadgen import INFER
from sits_bench.mesh_system import MeshSystem
from sits_bench.system import Running
from sits_sim.figures import Figure

TENANTS, MODELS, EXECUTORS = 1_000, 100, 64
LEAST: Final = 0.9
START_S: Final = 8.0
FILL_S: Final = 60.0
FEW, MANY = "1", "many"
_ONE: Final = MeshSystem("mesh, one of all", [repositories.echo()])
_MODELS: Final = MeshSystem(
    f"mesh, {MODELS} models",
    [repositories.echo(), *(repositories.echo(f"echo_{n}") for n in range(1, MODELS))],
)


@dataclass(frozen=True, slots=True)
class Scale:
    name: str = "scale"

    def seconds(self, plan: Plan) -> float:
        each_s = plan.warm_up_s + plan.duration_s
        return plan.rounds * (3 * START_S + 5 * each_s)

    def run(self, bench: Bench) -> list[Figure]:
        found = Found()
        for number in range(bench.plan.rounds):
            rounds = [_few_and_tenants, _models, _executors]
            for one in (*rounds[number % 3 :], *rounds[: number % 3]):
                one(bench, found)
        bench.keep(self.name, found)
        return _figures(found)


def _figures(found: Found) -> list[Figure]:
    few = found.median(FEW, FEW, per_s)
    return [
        at_least_times(f"scale.{kind}: 1 → {count:,} {text}, throughput",
                       found.median(kind, MANY, per_s), "req/s", few, LEAST)
        for kind, count, text in (
            ("tenants", TENANTS, "tenants"),
            ("models", MODELS, "models known"),
            ("executors", EXECUTORS, "executors registered, all but one busy"),
        )
    ]  # fmt: skip


def _few_and_tenants(bench: Bench, found: Found) -> None:
    """One tenant, one model, one executor; and the same mesh with a thousand tenants."""
    one = [replace(KILOBYTE, parameters={"sits_tenant": "t0"})]
    many = [replace(KILOBYTE, parameters={"sits_tenant": f"t{n}"}) for n in range(TENANTS)]
    with _ONE.start() as running:
        checks.echoes(running, KILOBYTE)
        bench.progress.step("scale: started", START_S)
        for kind, label, inferences in ((FEW, FEW, one), ("tenants", MANY, many)):
            load = bench.plan.closed(request_file(f"{kind}-tenants", inferences), 64)
            found.add(kind, label, steady(running, load))
            bench.progress.step(f"scale: {kind}", load.seconds)


def _models(bench: Bench, found: Found) -> None:
    load = bench.plan.closed(request_file("1-kb", [KILOBYTE]), 64)
    with _MODELS.start() as running:
        checks.echoes(running, KILOBYTE)
        bench.progress.step("scale: started", START_S)
        found.add("models", MANY, steady(running, load))
    bench.progress.step("scale: models", load.seconds)


def _executors(bench: Bench, found: Found) -> None:
    """All but one hold a batch that takes for ever, as busy ones do: every decision sees all
    of them, and the load runs on the one that also serves it in the case of one executor."""
    load = bench.plan.closed(request_file("1-kb", [KILOBYTE]), 64)
    with (
        _ONE.running() as (mesh, running),
        fake_executors.registered(mesh, repositories.ECHO, EXECUTORS - 1, hold) as fakes,
        _background(running) as send,
    ):
        fill(fakes, send, FILL_S)
        checks.echoes(running, KILOBYTE)
        bench.progress.step("scale: started", START_S)
        found.add("executors", MANY, steady(running, load))
    bench.progress.step("scale: executors", load.seconds)


class _Send:
    def __init__(self, channel: grpc.Channel) -> None:
        self._infer = channel.unary_unary(INFER, None, None)
        self._body = KILOBYTE.grpc()
        self.calls: list[grpc.Future[bytes]] = []

    def __call__(self) -> None:
        """Start a request that may never be answered."""
        self.calls.append(self._infer.future(self._body))


@contextmanager
def _background(running: Running) -> Iterator[_Send]:
    with grpc.insecure_channel(running.target) as channel:
        send = _Send(channel)
        yield send
        for call in send.calls:
            call.cancel()


SCALE: Final = Scale()
