"""Fakes and small helpers for tests. Loopback links are in `sits_channel.testing`."""

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from sits_core.clock import now_ns
from sits_core.registry import (
    LEASE_TTL_S,
    SCALE_TTL_S,
    TOPOLOGY_TTL_S,
    Change,
    RegistryUnavailable,
)
from sits_protos.v1.link_pb2 import Role
from sits_protos.v1.registry_pb2 import CachedAnswer, Lease
from sits_protos.v1.topology_pb2 import TopologySnapshot

_POLL_S = 0.005


class FakeClock:
    """Stands for `sits_core.clock.now_ns`: call it to read it, `advance` to move it."""

    def __init__(self, unix_ns: int = 1_700_000_000_000_000_000) -> None:
        self.unix_ns = unix_ns

    def __call__(self) -> int:
        return self.unix_ns

    def advance(self, seconds: float) -> None:
        self.unix_ns += round(seconds * 1e9)

    def __repr__(self) -> str:
        return f"<FakeClock {self.unix_ns / 1e9:.9f}>"


class MemoryRegistry:
    """A `Registry` in memory with the expiry of the real one.

    While `down` is true every call raises `RegistryUnavailable`, as when Redis is gone.
    Hints come on the thread that changes something. `on_change` may call the registry.
    """

    def __init__(self, clock: Callable[[], int] = now_ns) -> None:
        self.down = False
        self._clock = clock
        self._leases: dict[tuple[Role.ValueType, str], tuple[int, bytes]] = {}
        self._topologies: dict[str, tuple[int, bytes]] = {}
        self._strategies: dict[str, str] = {}
        self._scale = (0, 1.0)
        self._events: list[dict[str, str]] = []
        self._subscribers: list[Change] = []

    def publish_lease(self, lease: Lease) -> None:
        self._check()
        entry = (self._expiry(LEASE_TTL_S), lease.SerializeToString())
        self._leases[lease.role, lease.id] = entry
        self._hint()

    def withdraw_lease(self, role: Role.ValueType, process_id: str) -> None:
        self._check()
        self._leases.pop((role, process_id), None)
        self._hint()

    def leases(self, role: Role.ValueType) -> list[Lease]:
        self._check()
        held = sorted(self._leases.items())
        return [
            Lease.FromString(data)
            for (owner, _), (expiry, data) in held
            if owner == role and expiry > self._clock()
        ]

    def publish_topology(self, snapshot: TopologySnapshot) -> None:
        self._check()
        entry = (self._expiry(TOPOLOGY_TTL_S), snapshot.SerializeToString())
        self._topologies[snapshot.host] = entry
        self._hint()

    def topologies(self) -> list[TopologySnapshot]:
        self._check()
        held = [data for _, data in sorted(self._topologies.items())]
        return [TopologySnapshot.FromString(data) for e, data in held if e > self._clock()]

    def set_strategy(self, model: str, strategy: str) -> None:
        self._check()
        self._strategies[model] = strategy
        self._hint()

    def strategies(self) -> dict[str, str]:
        self._check()
        return dict(self._strategies)

    def publish_scale(self, factor: float) -> None:
        self._check()
        self._scale = (self._expiry(SCALE_TTL_S), factor)

    def scale(self) -> float | None:
        self._check()
        expiry, factor = self._scale
        return factor if expiry > self._clock() else None

    def publish_event(self, event: Mapping[str, str]) -> None:
        self._check()
        self._events.append(dict(event))

    def events(self) -> list[dict[str, str]]:
        self._check()
        return list(self._events)

    def subscribe(self, on_change: Change) -> Callable[[], None]:
        self._subscribers.append(on_change)
        return lambda: self._unsubscribe(on_change)

    def _unsubscribe(self, on_change: Change) -> None:
        with suppress(ValueError):
            self._subscribers.remove(on_change)

    def _check(self) -> None:
        if self.down:
            raise RegistryUnavailable("the registry of this test is down")

    def _expiry(self, ttl_s: float) -> int:
        return self._clock() + round(ttl_s * 1e9)

    def _hint(self) -> None:
        for on_change in tuple(self._subscribers):
            on_change()

    def __repr__(self) -> str:
        state = "down" if self.down else "up"
        return f"<MemoryRegistry {state} {len(self._leases)} leases>"


class MemoryAnswers:
    """An `AnswerStore` in memory. While `down` is true every call raises, as when Redis is gone;
    `ttl_ms` says how long each answer would be kept."""

    def __init__(self) -> None:
        self.down = False
        self.records: dict[bytes, bytes] = {}
        self.ttl_ms: dict[bytes, int] = {}

    def read(self, digests: Sequence[bytes]) -> list[CachedAnswer | None]:
        self._check()
        found = [self.records.get(digest) for digest in digests]
        return [None if data is None else CachedAnswer.FromString(data) for data in found]

    def write(self, answers: Sequence[tuple[CachedAnswer, int]]) -> None:
        self._check()
        for answer, ttl_ms in answers:
            self.records[answer.digest] = answer.SerializeToString()
            self.ttl_ms[answer.digest] = ttl_ms

    def close(self) -> None:
        """Nothing to let go of."""

    def _check(self) -> None:
        if self.down:
            raise RegistryUnavailable("the store of this test is down")

    def __repr__(self) -> str:
        return f"<MemoryAnswers {'down' if self.down else 'up'} {len(self.records)} answers>"


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until(condition: Callable[[], object], timeout_s: float = 10.0, what: str = "") -> None:
    """Return once `condition()` is true; `AssertionError` when it is not within `timeout_s`."""
    give_up = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > give_up:
            raise AssertionError(f"{what or 'the condition'} was not met within {timeout_s} s")
        time.sleep(_POLL_S)
