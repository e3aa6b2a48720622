"""The registry in Redis. `sits_core.registry` lists the keys; here is what changes them.

Each change is one atomic step on the server:
  publish_lease, publish_topology   script _PUBLISH: the record with its TTL, its id in the
                                    index, expired ids out of it, a hint if it is new
  withdraw_lease                    MULTI: record and id gone, a hint
  publish_scale                     SET with its TTL; no hint, nobody waits for it
  publish_event                     MULTI: XADD with a limit, its TTL
  set_strategy                      MULTI: one field of the hash, its TTL, a hint
Reads take an index and then its records; what expired in between is left out.
`strategies` renews the TTL of the hash as it reads (MULTI).
"""

import random
from collections.abc import Callable, Mapping
from typing import TypeVar, cast

from google.protobuf.message import DecodeError
from prometheus_client import CollectorRegistry, Counter
from redis import Redis
from redis.typing import EncodableT, FieldT

from sits_core.redis_hints import Hints
from sits_core.redis_server import RedisServer
from sits_core.registry import (
    EVENTS_KEPT,
    EVENTS_TTL_S,
    LEASE_TTL_S,
    SCALE_TTL_S,
    STRATEGY_TTL_S,
    TOPOLOGY_TTL_S,
    Change,
)
from sits_core.settings import Settings
from sits_protos.v1.link_pb2 import Role
from sits_protos.v1.registry_pb2 import Lease
from sits_protos.v1.topology_pb2 import TopologySnapshot

MAX_RECORD_BYTES = 1 << 20
"""Longer ones are unreadable. The snapshot of a node with 16 GPUs takes about 50 KB."""

# KEYS: record, index, channel. ARGV: id, record, TTL in ms, kind. The server's clock
# counts, so that hosts whose clocks differ agree. A record that says what it said before
# is no change: a thousand leases renewed every two seconds must not wake everybody.
_PUBLISH = """
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local before = redis.call('GET', KEYS[1])
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
redis.call('ZADD', KEYS[2], now_ms + ARGV[3], ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now_ms)
redis.call('PEXPIRE', KEYS[2], ARGV[3])
if before ~= ARGV[2] then
  redis.call('PUBLISH', KEYS[3], ARGV[4])
end
"""


R = TypeVar("R")


def connect(settings: Settings, metrics: CollectorRegistry | None = None) -> "RedisRegistry | None":
    """The registry that SITS_REDIS_URL names; None without one.

    Returns as well when the server cannot be reached: it is found later. Raises
    `SettingsError` for a wrong setting, or a server that SITS cannot work with.
    """
    if not settings.secret("redis_url"):
        return None
    metrics = metrics or CollectorRegistry()
    server = RedisServer(settings, metrics)
    server.check()
    return RedisRegistry(server, settings.redis_prefix, metrics)


class RedisRegistry:
    """A `Registry`, safe from any thread. `close` when done with it.

    Known weakness: a read fetches all records, changed or not.
    """

    def __init__(
        self,
        server: RedisServer,
        prefix: str,
        metrics: CollectorRegistry,
        rng: random.Random | None = None,
    ) -> None:
        self._server = server
        self._prefix = f"{{{prefix}}}"
        self._channel = f"{self._prefix}:changes"
        self._hints = Hints(server, self._channel, rng or random.Random())  # noqa: S311 - jitter
        self._unreadable = Counter(
            "sits_redis_unreadable_records_total",
            "Records in Redis that were skipped because they made no sense, by kind",
            ["kind"],
            registry=metrics,
        )

    def publish_lease(self, lease: Lease) -> None:
        record, index = self._lease_keys(lease.role)
        data = lease.SerializeToString(deterministic=True)
        self._publish("lease", record + lease.id, index, lease.id, data, LEASE_TTL_S)

    def withdraw_lease(self, role: Role.ValueType, process_id: str) -> None:
        record, index = self._lease_keys(role)

        def use(client: Redis) -> None:
            with client.pipeline(transaction=True) as change:
                change.delete(record + process_id)
                change.zrem(index, process_id)
                change.publish(self._channel, "lease")
                change.execute()

        self._server.call("withdraw_lease", use)

    def leases(self, role: Role.ValueType) -> list[Lease]:
        def parse(process_id: str, data: bytes) -> Lease:
            lease = Lease.FromString(data)
            if (lease.role, lease.id) != (role, process_id):
                raise ValueError("the lease of somebody else")
            return lease

        return self._read("lease", *self._lease_keys(role), parse)

    def publish_topology(self, snapshot: TopologySnapshot) -> None:
        record, index = self._topology_keys()
        data = snapshot.SerializeToString(deterministic=True)
        self._publish(
            "topology", record + snapshot.host, index, snapshot.host, data, TOPOLOGY_TTL_S
        )

    def topologies(self) -> list[TopologySnapshot]:
        def parse(host: str, data: bytes) -> TopologySnapshot:
            snapshot = TopologySnapshot.FromString(data)
            if snapshot.host != host:
                raise ValueError("the topology of another host")
            return snapshot

        return self._read("topology", *self._topology_keys(), parse)

    def set_strategy(self, model: str, strategy: str) -> None:
        def use(client: Redis) -> None:
            with client.pipeline(transaction=True) as change:
                change.hset(f"{self._prefix}:strategy", model, strategy)
                change.expire(f"{self._prefix}:strategy", STRATEGY_TTL_S)
                change.publish(self._channel, "strategy")
                change.execute()

        self._server.call("set_strategy", use)

    def strategies(self) -> dict[str, str]:
        def use(client: Redis) -> dict[bytes, bytes]:
            with client.pipeline(transaction=True) as reading:
                reading.hgetall(f"{self._prefix}:strategy")
                reading.expire(f"{self._prefix}:strategy", STRATEGY_TTL_S)
                return cast("dict[bytes, bytes]", reading.execute()[0])

        chosen: dict[str, str] = {}
        for model, strategy in self._server.call("strategies", use).items():
            try:
                chosen[model.decode()] = strategy.decode()
            except UnicodeDecodeError:
                self._unreadable.labels("strategy").inc()
        return chosen

    def publish_scale(self, factor: float) -> None:
        key, text = f"{self._prefix}:scale", f"{factor:.3f}"
        self._server.call("publish_scale", lambda client: client.set(key, text, ex=SCALE_TTL_S))

    def scale(self) -> float | None:
        data = self._server.call("scale", lambda client: client.get(f"{self._prefix}:scale"))
        try:
            return float(cast("bytes", data)) if data is not None else None
        except ValueError:
            self._unreadable.labels("scale").inc()
            return None

    def publish_event(self, event: Mapping[str, str]) -> None:
        key = f"{self._prefix}:events"
        fields: dict[FieldT, EncodableT] = {name: text for name, text in event.items()}  # noqa: C416 - dict() keeps its types

        def use(client: Redis) -> None:
            with client.pipeline(transaction=True) as change:
                change.xadd(key, fields, maxlen=EVENTS_KEPT, approximate=True)
                change.expire(key, EVENTS_TTL_S)
                change.execute()

        self._server.call("publish_event", use)

    def events(self) -> list[dict[str, str]]:
        def use(client: Redis) -> list[tuple[bytes, dict[bytes, bytes]]]:
            return cast(
                "list[tuple[bytes, dict[bytes, bytes]]]",
                client.xrange(f"{self._prefix}:events"),
            )

        return [
            {name.decode(): text.decode(errors="replace") for name, text in fields.items()}
            for _, fields in self._server.call("events", use)
        ]

    def subscribe(self, on_change: Change) -> Callable[[], None]:
        return self._hints.subscribe(on_change)

    def close(self) -> None:
        self._hints.close()
        self._server.close()

    def _lease_keys(self, role: Role.ValueType) -> tuple[str, str]:
        name = Role.Name(role).removeprefix("ROLE_").lower()
        return f"{self._prefix}:lease:{name}:", f"{self._prefix}:leases:{name}"

    def _topology_keys(self) -> tuple[str, str]:
        return f"{self._prefix}:topology:", f"{self._prefix}:topologies"

    def _publish(
        self, kind: str, record: str, index: str, member: str, data: bytes, ttl_s: int
    ) -> None:
        keys, arguments = (record, index, self._channel), (member, data, ttl_s * 1000, kind)
        self._server.call(
            f"publish_{kind}",
            lambda client: client.eval(_PUBLISH, len(keys), *keys, *arguments),
        )

    def _read(
        self, kind: str, record: str, index: str, parse: Callable[[str, bytes], R]
    ) -> list[R]:
        """Records by their ids' order; those that `parse` cannot read are counted."""

        def use(client: Redis) -> list[tuple[bytes, bytes | None]]:
            ids = sorted(cast("list[bytes]", client.zrange(index, 0, -1)))
            keys = [record.encode() + id_ for id_ in ids]
            records = cast("list[bytes | None]", client.mget(keys) if keys else [])
            return list(zip(ids, records, strict=True))

        found: list[R] = []
        for id_, data in self._server.call(f"read_{kind}", use):
            if data is None:
                continue
            try:
                if len(data) > MAX_RECORD_BYTES:
                    raise ValueError("too long")
                found.append(parse(id_.decode(), data))
            except (DecodeError, ValueError):
                self._unreadable.labels(kind).inc()
        return found

    def __repr__(self) -> str:
        return f"<RedisRegistry {self._prefix} at {self._server!r}>"
