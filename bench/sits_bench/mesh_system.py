"""Our mesh as a system under test: all four services and a Redis of its own, on this machine."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from sits_bench import repositories
from sits_bench.loadgen import BenchError
from sits_bench.machine import may_go_first
from sits_bench.paths import WORK
from sits_bench.processes import family
from sits_bench.repositories import Model
from sits_bench.system import Running, until
from sits_cli import ports
from sits_cli.mesh import Mesh, MeshFailed, Plan

READY_S: Final = 60.0
NICE: Final = -10
BEST: Final[Mapping[str, str]] = {
    "SITS_PREPROCESS_TRANSPORT": "native",
    "SITS_DISPATCHER_GOVERNANCE": "false",
    **({"SITS_PREPROCESS_IO_NICE": f"{NICE}"} if may_go_first(NICE) else {}),
}
"""What is not the default and makes it faster, or may help under overload."""
FORCE_GRPC: Final = {"SITS_FORCE_GRPC_LINKS": "true"}
INLINE: Final = {"SITS_PREPROCESS_POOL_BYTES": "0", "SITS_EXECUTOR_POOL_BYTES": "0"}

Env = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class MeshSystem:
    """One executor and one dispatcher unless told otherwise. `env` goes to every service on top
    of `BEST`. `made_by` makes its plan."""

    name: str
    models: Sequence[Model]
    env: Env = field(default_factory=dict)
    executors: int = 1
    dispatchers: int = 1
    base: Env = field(default_factory=lambda: BEST)
    made_by: type[Plan] = Plan

    @contextmanager
    def start(self) -> Iterator[Running]:
        with self.running() as (_, running):
            yield running

    @contextmanager
    def running(self) -> Iterator[tuple[Mesh, Running]]:
        folder = re.sub(r"[^a-z0-9]+", "-", self.name.lower())
        book, more = ports.free(self.executors), self._more_dispatchers()
        binds = [book.dispatcher, *(env["SITS_DISPATCHER_BIND"] for env in more.values())]
        plan = self.made_by(
            book,
            models=repositories.write(folder, self.models),
            log_dir=WORK / "logs" / folder,
            env={**self.base, **self.env},
            service_env={"preprocess": {"SITS_PREPROCESS_DISPATCHERS": ",".join(binds)}},
            more=more,
        )
        with Mesh(plan) as mesh:
            try:
                mesh.wait_ready(READY_S)
            except MeshFailed as error:
                raise BenchError(f"{self.name}: {error}") from None
            self._await_models(mesh)
            yield mesh, Running(mesh.addresses.front, lambda: pids(mesh), metrics=metrics(mesh))

    def _more_dispatchers(self) -> dict[str, Env]:
        books = [ports.free(0) for _ in range(1, self.dispatchers)]
        return {
            f"dispatcher-{number}": {
                "SITS_DISPATCHER_BIND": book.dispatcher,
                "SITS_DISPATCHER_ADMIN_BIND": book.admin,
            }
            for number, book in enumerate(books, 1)
        }

    def _await_models(self, mesh: Mesh) -> None:
        def ready() -> bool:
            try:
                return all(client.is_model_ready(model.name) for model in self.models)
            except InferenceServerException:
                return False

        with triton.InferenceServerClient(mesh.addresses.front) as client:
            until(ready, READY_S, f"models of {self.name}")


def pids(mesh: Mesh) -> list[int]:
    """All that belongs to the mesh, Redis too."""
    names = [*mesh.names(), "redis"]
    return [pid for name in names if (own := mesh.pid(name)) is not None for pid in family(own)]


def metrics(mesh: Mesh) -> tuple[str, ...]:
    book = mesh.addresses
    return (book.front_metrics, book.admin, *(address for _, address in book.executors))
