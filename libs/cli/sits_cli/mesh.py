"""The whole mesh on this machine: four kinds of service and Redis, as children of ours."""

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from sits_cli import health, redis_keeper
from sits_cli.plan import Plan, bind_variable
from sits_cli.ports import AddressBook
from sits_cli.private_redis import PrivateRedis
from sits_cli.redis_keeper import RedisKeeper
from sits_cli.supervisor import Event, Supervisor, ignore, last_lines
from sits_core.settings import SettingsError

__all__ = ["Mesh", "MeshFailed", "Plan", "ServiceState"]

POLL_S = 0.05
MAX_RESTARTS_BEFORE_READY = 3


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
            server = PrivateRedis(log=self.plan.log_dir / f"{redis_keeper.NAME}.log")
            self._redis = RedisKeeper(self._listener, self.plan.restart, server)
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
        if self.pid(name) is None:
            return False
        environ = {**os.environ, **self.plan.env}
        return health.ready(self._health_addresses()[name], environ=environ)

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
                         redis.restarts, str(redis.server.log))
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
            **{name: env[bind_variable(name)] for name, env in self.plan.more.items()},
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
