"""The whole mesh on this machine: four kinds of service and Redis, as children of ours."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from sits_cli import health, redis_keeper
from sits_cli.ports import AddressBook
from sits_cli.redis_keeper import RedisKeeper
from sits_cli.supervisor import Event, Program, Supervisor, ignore, last_lines
from sits_core.settings import SettingsError

POLL_S = 0.05
MAX_RESTARTS_BEFORE_READY = 3
OWN_PREFIX = "SITS_CLI_"
"""Variables of this command, which the services do not know."""


class MeshFailed(Exception):
    """The mesh did not become ready; the text says which service, why and what to do."""


@dataclass(frozen=True, slots=True)
class ServiceState:
    """One line of `sits up`. `pid` is None while it does not run."""

    name: str
    address: str
    pid: int | None
    ready: bool
    restarts: int
    log: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. `env` holds variables for all services, `service_env` those of one
    (by name, such as "executor-0"; "executor" is all executors)."""

    addresses: AddressBook
    models: Path = Path("models")
    log_dir: Path = Path(".sits/logs")
    redis_url: str | None = None
    private_redis: bool = True
    restart: bool = True
    env: Mapping[str, str] = field(default_factory=dict)
    service_env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def loads_models(self) -> bool:
        """Whether executors load anything at start; without, the front door is never ready."""
        everywhere = {**os.environ, **self.env, **self.service_env.get("executor", {})}
        return everywhere.get("SITS_EXECUTOR_LOAD") != "none"

    def programs(self, redis_url: str | None) -> list[Program]:
        """In the order they start; they stop in the reverse, the front door first."""
        return [self._program(name, own, redis_url) for name, own in self._own_env(redis_url)]

    def _own_env(self, redis_url: str | None) -> Iterator[tuple[str, dict[str, str]]]:
        book = self.addresses
        yield (
            "topology",
            {
                "SITS_TOPOLOGY_BIND": book.topology,
                "SITS_TOPOLOGY_METRICS_BIND": book.topology_metrics,
            },
        )
        for number, (bind, metrics) in enumerate(book.executors):
            yield (
                f"executor-{number}",
                {
                    "SITS_EXECUTOR_BIND": bind,
                    "SITS_EXECUTOR_METRICS_BIND": metrics,
                    "SITS_EXECUTOR_MODEL_REPOSITORY": str(self.models),
                },
            )
        yield (
            "dispatcher",
            {
                "SITS_DISPATCHER_BIND": book.dispatcher,
                "SITS_DISPATCHER_ADMIN_BIND": book.admin,
                # Without Redis there are no leases to find them by.
                "SITS_DISPATCHER_EXECUTORS": ""
                if redis_url
                else ",".join(bind for bind, _ in book.executors),
            },
        )
        yield (
            "preprocess",
            {
                "SITS_PREPROCESS_BIND": book.front,
                "SITS_PREPROCESS_METRICS_BIND": book.front_metrics,
                "SITS_PREPROCESS_CONTROL_BIND": book.front_control,
                "SITS_PREPROCESS_DISPATCHERS": book.dispatcher,
            },
        )

    def _program(self, name: str, own: Mapping[str, str], redis_url: str | None) -> Program:
        kind = name.partition("-")[0]
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(OWN_PREFIX)}
        inherited.pop("SITS_REDIS_URL", None)
        redis = {"SITS_REDIS_URL": redis_url} if redis_url else {}
        env = inherited | redis | dict(own) | dict(self.env)
        env |= dict(self.service_env.get(kind, {})) | dict(self.service_env.get(name, {}))
        argv = (sys.executable, "-m", f"sits_{kind}")
        return Program(name, argv, env, self.log_dir / f"{name}.log")


class Mesh:
    """Starts a `Plan`, keeps it running, takes it down.

    >>> with Mesh(Plan(ports.free(executors=2), models=folder)) as mesh:
    ...     mesh.wait_ready(30)
    ...     mesh.kill("executor-0")          # comes back by itself
    ...     mesh.kill("redis", restart=False)
    ...     mesh.revive("redis")
    """

    def __init__(self, plan: Plan, listener: Callable[[Event], None] = ignore) -> None:
        self.plan, self._listener = plan, listener
        self._redis: RedisKeeper | None = None
        self._supervisor: Supervisor | None = None
        self._redis_url: str | None = None

    @property
    def addresses(self) -> AddressBook:
        return self.plan.addresses

    @property
    def redis_url(self) -> str | None:
        """What the services got; None = they run without Redis."""
        return self._redis_url

    def start(self) -> None:
        """Start everything without waiting for it to be ready. Raises `SettingsError`."""
        self._redis_url = self.plan.redis_url
        if self._redis_url is None and self.plan.private_redis:
            self._redis = RedisKeeper(self._listener, self.plan.restart)
            self._redis_url = self._redis.start()
        programs = self.plan.programs(self._redis_url)
        self._supervisor = Supervisor(programs, self.plan.restart, self._listener)
        self._supervisor.start()

    def stop(self) -> None:
        """The front door first, so that what is accepted is still answered; Redis last."""
        if self._supervisor is not None:
            self._supervisor.stop()
        if self._redis is not None:
            self._redis.stop()

    def kill_all(self) -> None:
        """Make a `stop` under way quick: nothing is finished any more."""
        self._running.kill_all()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def kill(
        self, name: str, number: signal.Signals = signal.SIGKILL, *, restart: bool = True
    ) -> None:
        """Send a signal to one service, or kill "redis". Without `restart`: until `revive`."""
        if name == redis_keeper.NAME:
            self._own_redis.kill(restart=restart)
        else:
            self._running.kill(name, number, restart=restart)

    def revive(self, name: str) -> None:
        """Start what was killed without `restart`, or gave up."""
        if name == redis_keeper.NAME:
            self._own_redis.revive()
        else:
            self._running.revive(name)

    def pid(self, name: str) -> int | None:
        if name == redis_keeper.NAME:
            return self._own_redis.pid
        return self._running.child(name).pid

    def names(self) -> list[str]:
        return [*self._health_addresses()]

    def ready(self, name: str) -> bool:
        return self.pid(name) is not None and health.ready(self._health_addresses()[name])

    def wait_ready(
        self,
        timeout_s: float,
        progress: Callable[[list[str]], None] = lambda _waiting: None,
        stop: threading.Event | None = None,
    ) -> float:
        """Seconds until every service said it is ready, or `stop` was set. `progress` hears
        the names still waited for. Raises `MeshFailed` when one cannot or takes too long.
        """
        start_s = time.monotonic()
        stop = stop or threading.Event()
        waiting = self.names()
        while waiting and not stop.is_set():
            progress(waiting)
            self._raise_if_hopeless(waiting)
            if time.monotonic() > start_s + timeout_s:
                raise MeshFailed(f"not ready within {timeout_s:g} s: {self.obituary(waiting[0])}")
            stop.wait(POLL_S)
            waiting = [name for name in waiting if not self.ready(name)]
        return time.monotonic() - start_s

    def states(self) -> list[ServiceState]:
        """Services in starting order, the private Redis first."""
        redis = self._redis
        first = [
            ServiceState("redis", redis.server.url, redis.pid, redis.pid is not None,
                         redis.restarts, "")
        ] if redis is not None else []  # fmt: skip
        return first + [self._state(name, at) for name, at in self._health_addresses().items()]

    def _state(self, name: str, address: str) -> ServiceState:
        child = self._running.child(name)
        log = str(child.program.log)
        return ServiceState(name, address, child.pid, self.ready(name), child.restarts, log)

    def _health_addresses(self) -> dict[str, str]:
        book = self.addresses
        executors = {f"executor-{i}": bind for i, (bind, _) in enumerate(book.executors)}
        return {
            "topology": book.topology,
            **executors,
            "dispatcher": book.dispatcher,
            "preprocess": book.front if self.plan.loads_models else book.front_control,
        }

    def _raise_if_hopeless(self, names: list[str]) -> None:
        for name in names:
            child = self._running.child(name)
            if child.exit_status is not None and (
                not child.wanted or child.restarts >= MAX_RESTARTS_BEFORE_READY
            ):
                raise MeshFailed(self.obituary(name))

    def obituary(self, name: str) -> str:
        """What is known about a service that is not well: status, last words, where to look."""
        child = self._running.child(name)
        lines = last_lines(child.program.log) or ["(it said nothing)"]
        status = "" if child.exit_status is None else f" ended with status {child.exit_status}"
        return "\n  ".join(
            [f"{name}{status}, its log ends with", *lines, f"all of it: {child.program.log}"]
        )

    @property
    def _running(self) -> Supervisor:
        if self._supervisor is None:
            raise RuntimeError("the mesh is not started")
        return self._supervisor

    @property
    def _own_redis(self) -> RedisKeeper:
        if self._redis is None:
            raise SettingsError("this mesh has no private Redis")
        return self._redis

    def __repr__(self) -> str:
        return f"<Mesh front={self.addresses.front} {self._supervisor!r}>"
