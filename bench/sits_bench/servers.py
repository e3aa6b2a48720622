"""The references in Python that the benchmark brings along: echo servers, one that refuses, the
naive mesh, and the front door alone."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from sits_bench.paths import BENCH
from sits_bench.processes import family, listening, started, wait_until
from sits_bench.system import Running
from sits_cli.ports import free_ports

START_S = 20.0
FIRST_CPU = {min(os.sched_getaffinity(0))}
"""Servers of one process are pinned to the first core: unpinned, a threaded grpcio server loses
a third to its interpreter lock wandering between cores."""


@dataclass(frozen=True, slots=True)
class Echo:
    """A single grpcio server; `kind` is sync or aio."""

    kind: str

    @property
    def name(self) -> str:
        return f"grpcio {self.kind} echo"

    @contextmanager
    def start(self) -> Iterator[Running]:
        (port,) = free_ports(1)
        argv = [sys.executable, "-m", "sits_bench.echo_server", self.kind, str(port)]
        with _python(self.name, argv, f"127.0.0.1:{port}", cpus=FIRST_CPU) as running:
            yield running


@dataclass(frozen=True, slots=True)
class Refusing:
    """Refuses every call at once, on the front door's HTTP/2 library. Not pinned, as the mesh."""

    name: str = "refuses everything"

    @contextmanager
    def start(self) -> Iterator[Running]:
        (port,) = free_ports(1)
        argv = [sys.executable, "-m", "sits_bench.refuse_server", str(port)]
        with _python(self.name, argv, f"127.0.0.1:{port}") as running:
            yield running


@dataclass(frozen=True, slots=True)
class FrontAlone:
    """The front door with an engine that echoes."""

    env: Mapping[str, str] = field(default_factory=dict)
    name: str = "front door alone"

    @contextmanager
    def start(self) -> Iterator[Running]:
        ports = free_ports(3)
        front, metrics, control = (f"127.0.0.1:{port}" for port in ports)
        env = {
            "SITS_PREPROCESS_BIND": front,
            "SITS_PREPROCESS_METRICS_BIND": metrics,
            "SITS_PREPROCESS_CONTROL_BIND": control,
            "SITS_PREPROCESS_TRANSPORT": "native",
            **self.env,
        }
        argv = [sys.executable, "-m", "sits_bench.front_server"]
        with _python(self.name, argv, front, env, cpus=FIRST_CPU) as running:
            yield running


@dataclass(frozen=True, slots=True)
class NaiveMesh:
    """bench/naive. Not pinned: its processes share the cores, as ours do."""

    executors: int = 1
    name: str = "naive mesh"

    @contextmanager
    def start(self) -> Iterator[Running]:
        ports = free_ports(2 + self.executors)
        front, dispatcher, *executors = (f"127.0.0.1:{port}" for port in ports)
        parts = [
            *(("executor", [executor]) for executor in executors),
            ("dispatcher", [dispatcher, *executors]),
            ("front", [front, dispatcher]),
        ]
        with ExitStack() as stack:
            running = [
                stack.enter_context(
                    _python(
                        f"naive {part}",
                        [sys.executable, "-m", f"naive.{part}", *addresses],
                        addresses[0],
                    )
                )
                for part, addresses in parts
            ]
            yield Running(front, lambda: [pid for each in running for pid in each.pids()])


@contextmanager
def _python(
    name: str,
    argv: list[str],
    address: str,
    env: Mapping[str, str] | None = None,
    cpus: set[int] | None = None,
) -> Iterator[Running]:
    """A server in Python whose modules are in this folder."""
    path = os.pathsep.join(filter(None, (str(BENCH), os.environ.get("PYTHONPATH"))))
    with started(name, argv, {"PYTHONPATH": path, **(env or {})}, cpus=cpus) as process:
        wait_until(lambda: listening(address), process, name, START_S)
        yield Running(address, lambda: family(process.pid))
