"""What services share through a real server: expiry, hints, records that make no sense."""

import os
import pickle
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from sits_cli.private_redis import PrivateRedis
from sits_core.keepers import Follower, LeaseKeeper
from sits_core.redis_registry import MAX_RECORD_BYTES, RedisRegistry, connect
from sits_core.registry import (
    EVENTS_TTL_S,
    LEASE_TTL_S,
    SCALE_TTL_S,
    STRATEGY_TTL_S,
    TOPOLOGY_TTL_S,
    RegistryUnavailable,
)
from sits_core.settings import Settings, SettingsError
from sits_core.testing import free_port, wait_until
from sits_protos.v1.link_pb2 import ROLE_DISPATCHER, ROLE_EXECUTOR
from sits_protos.v1.registry_pb2 import Lease
from sits_protos.v1.topology_pb2 import TopologySnapshot

pytestmark = pytest.mark.redis

Open = Callable[..., RedisRegistry]
Start = Callable[..., PrivateRedis]


def executor(name: str, **fields: object) -> Lease:
    return Lease(role=ROLE_EXECUTOR, id=name, address="127.0.0.1:8020", **fields)


def cluster() -> list[str]:
    return ["cluster-enabled yes", f"cluster-port {free_port()}"]


@pytest.fixture
def registry(redis_server: PrivateRedis, open_registry: Open) -> RedisRegistry:
    return open_registry(redis_url=redis_server.url)


@pytest.fixture
def raw(redis_server: PrivateRedis) -> Iterator[redis.Redis]:
    """A client of nobody's, to look at and to spoil what is stored."""
    with redis.Redis.from_url(redis_server.url) as client:
        yield client


def ids(registry: RedisRegistry) -> list[str]:
    return [lease.id for lease in registry.leases(ROLE_EXECUTOR)]


def test_without_a_url_there_is_no_registry() -> None:
    assert connect(Settings()) is None


def test_leases_are_listed_by_role_until_they_are_withdrawn(registry: RedisRegistry) -> None:
    registry.publish_lease(executor("b"))
    registry.publish_lease(executor("a", draining=True))
    registry.publish_lease(Lease(role=ROLE_DISPATCHER, id="d"))
    assert registry.leases(ROLE_EXECUTOR) == [executor("a", draining=True), executor("b")]
    registry.withdraw_lease(ROLE_EXECUTOR, "a")
    assert ids(registry) == ["b"]


def test_an_expired_lease_is_gone_and_leaves_the_index(
    registry: RedisRegistry, raw: redis.Redis
) -> None:
    registry.publish_lease(executor("dead"))
    raw.pexpire("{sits}:lease:executor:dead", 1)
    raw.zadd("{sits}:leases:executor", {"dead": 1})
    wait_until(lambda: ids(registry) == [])
    registry.publish_lease(executor("alive"))
    assert raw.zrange("{sits}:leases:executor", 0, -1) == [b"alive"]


def test_topologies_are_kept_by_host(registry: RedisRegistry) -> None:
    for version in (1, 2):
        registry.publish_topology(TopologySnapshot(host="h2", version=version))
    registry.publish_topology(TopologySnapshot(host="h1", version=7))
    assert [(t.host, t.version) for t in registry.topologies()] == [("h1", 7), ("h2", 2)]


def test_strategies_are_kept_by_model(registry: RedisRegistry) -> None:
    assert registry.strategies() == {}
    registry.set_strategy("", "least_loaded")
    registry.set_strategy("ocr", "round_robin")
    registry.set_strategy("", "topo_aware")
    assert registry.strategies() == {"": "topo_aware", "ocr": "round_robin"}


def test_the_wanted_capacity_is_told_while_somebody_says_so(
    registry: RedisRegistry, raw: redis.Redis
) -> None:
    assert registry.scale() is None
    registry.publish_scale(1.5)
    assert registry.scale() == 1.5
    (key,) = raw.keys("*:scale")
    raw.set(key, "much")
    assert registry.scale() is None


def test_every_key_has_the_prefix_and_a_ttl(
    redis_server: PrivateRedis, open_registry: Open
) -> None:
    registry = open_registry(redis_url=redis_server.url, redis_prefix="blue")
    registry.publish_lease(executor("a"))
    registry.publish_topology(TopologySnapshot(host="h"))
    registry.set_strategy("", "topo_aware")
    registry.publish_scale(1.0)
    registry.publish_event({"cause": "a test"})
    with redis.Redis.from_url(redis_server.url) as raw:
        ttls = {key.decode(): raw.ttl(key) for key in raw.scan_iter()}
    longest = {
        "{blue}:lease:executor:a": LEASE_TTL_S,
        "{blue}:leases:executor": LEASE_TTL_S,
        "{blue}:topology:h": TOPOLOGY_TTL_S,
        "{blue}:topologies": TOPOLOGY_TTL_S,
        "{blue}:strategy": STRATEGY_TTL_S,
        "{blue}:scale": SCALE_TTL_S,
        "{blue}:events": EVENTS_TTL_S,
    }
    assert ttls.keys() == longest.keys()
    assert all(0 < ttls[key] <= longest[key] for key in ttls)


def test_events_are_kept_in_order(registry: RedisRegistry) -> None:
    steps = [{"before": "normal", "after": "scale_out"}, {"cause": "queue 130 above 120 → ž"}]
    for step in steps:
        registry.publish_event(step)
    assert registry.events() == steps


def test_reading_a_strategy_keeps_it(registry: RedisRegistry, raw: redis.Redis) -> None:
    registry.set_strategy("", "topo_aware")
    raw.expire("{sits}:strategy", 100)
    registry.strategies()
    assert raw.ttl("{sits}:strategy") > 100


def test_meshes_with_different_prefixes_do_not_meet(
    redis_server: PrivateRedis, open_registry: Open
) -> None:
    blue, green = (open_registry(redis_url=redis_server.url, redis_prefix=p) for p in ("b", "g"))
    blue.publish_lease(executor("a"))
    assert (ids(blue), ids(green)) == (["a"], [])


def test_each_change_is_hinted_and_a_renewal_is_none(
    registry: RedisRegistry, raw: redis.Redis
) -> None:
    with raw.pubsub(ignore_subscribe_messages=True) as channel:
        channel.subscribe("{sits}:changes")
        channel.get_message(timeout=5)
        registry.publish_lease(executor("a"))
        registry.publish_lease(executor("a"))
        registry.publish_lease(executor("a", draining=True))
        registry.publish_topology(TopologySnapshot(host="h", version=1))
        registry.set_strategy("", "topo_aware")
        registry.withdraw_lease(ROLE_EXECUTOR, "a")
        heard = [channel.get_message(timeout=5)["data"] for _ in range(5)]
        assert heard == [b"lease", b"lease", b"topology", b"strategy", b"lease"]
        assert channel.get_message(timeout=0.1) is None


def test_a_follower_learns_of_a_change_by_its_hint(
    registry: RedisRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sits_core.keepers.POLL_PERIOD_S", 3600.0)
    seen: list[list[str]] = []
    follower = Follower(registry, lambda: seen.append(ids(registry)))
    follower.start()
    try:
        wait_until(lambda: seen)
        registry.publish_lease(executor("a"))
        wait_until(lambda: seen[-1] == ["a"])
        registry.withdraw_lease(ROLE_EXECUTOR, "a")
        wait_until(lambda: seen[-1] == [])
    finally:
        follower.stop()


def test_hints_come_again_after_a_restart(
    redis_server: PrivateRedis, registry: RedisRegistry
) -> None:
    told: list[None] = []
    registry.subscribe(lambda: told.append(None))
    wait_until(lambda: told)
    redis_server.restart()
    before = len(told)
    wait_until(lambda: len(told) > before, what="a look at what was missed")
    before = len(told)
    registry.set_strategy("", "topo_aware")
    wait_until(lambda: len(told) > before, what="a hint")


def test_random_bytes_are_counted_and_skipped(redis_server: PrivateRedis, raw: redis.Redis) -> None:
    metrics, records = CollectorRegistry(), 10_000
    rng = random.Random(0)
    registry = connect(Settings(redis_url=redis_server.url), metrics)
    assert registry is not None
    registry.publish_lease(executor("good"))
    good = executor("x").SerializeToString()
    with raw.pipeline() as spoil:
        for number in range(records):
            noise = rng.randbytes(rng.randrange(60))
            member = f"r{number}".encode() if number % 2 else rng.randbytes(8)
            spoil.set(b"{sits}:lease:executor:" + member, good[: rng.randrange(9)] + noise)
            spoil.zadd("{sits}:leases:executor", {member: 1})
        spoil.execute()
    assert ids(registry) == ["good"]
    skipped = metrics.get_sample_value("sits_redis_unreadable_records_total", {"kind": "lease"})
    assert skipped == records
    registry.close()


class _Marker:
    """Unpickled, it leaves a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self._path),)


def test_a_pickle_is_never_opened(
    registry: RedisRegistry, raw: redis.Redis, tmp_path: Path
) -> None:
    crafted = pickle.dumps(_Marker(tmp_path / "marker"))
    told: list[None] = []
    registry.subscribe(lambda: told.append(None))
    wait_until(lambda: told)
    for index, record in (("leases:executor", "lease:executor"), ("topologies", "topology")):
        raw.zadd(f"{{sits}}:{index}", {"evil": 1})
        raw.set(f"{{sits}}:{record}:evil", crafted)
    raw.hset("{sits}:strategy", mapping={b"\xff": crafted, "ocr": crafted, "cv": "topo_aware"})
    raw.publish("{sits}:changes", crafted)
    wait_until(lambda: len(told) > 1)
    assert (ids(registry), registry.topologies()) == ([], [])
    assert registry.strategies() == {"cv": "topo_aware"}
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize(
    "record",
    [
        executor("another").SerializeToString(),
        Lease(role=ROLE_DISPATCHER, id="a").SerializeToString(),
        executor("a", host="x" * MAX_RECORD_BYTES).SerializeToString(),
    ],
    ids=["another id", "another role", "too long"],
)
def test_a_record_that_is_not_what_its_key_says_is_skipped(
    registry: RedisRegistry, raw: redis.Redis, record: bytes
) -> None:
    raw.zadd("{sits}:leases:executor", {"a": 1})
    raw.set("{sits}:lease:executor:a", record)
    assert ids(registry) == []


def test_keys_of_another_type_are_an_outage_not_a_crash(
    registry: RedisRegistry, raw: redis.Redis
) -> None:
    raw.set("{sits}:leases:executor", "not a sorted set")
    with pytest.raises(RegistryUnavailable, match="WRONGTYPE"):
        registry.leases(ROLE_EXECUTOR)


def test_a_server_that_is_down_at_start_is_found_later(
    start_redis: Start, open_registry: Open
) -> None:
    port = free_port()
    registry = open_registry(redis_url=f"redis://127.0.0.1:{port}")
    with pytest.raises(RegistryUnavailable, match=f"127.0.0.1:{port}"):
        registry.leases(ROLE_EXECUTOR)
    start_redis(port=port)
    assert ids(registry) == []


def test_killed_and_restarted_redis_is_filled_again(
    redis_server: PrivateRedis, registry: RedisRegistry
) -> None:
    seen: list[list[str]] = []
    follower = Follower(registry, lambda: seen.append(ids(registry)))
    keeper = LeaseKeeper(registry, lambda: executor("a"))
    for thread in (follower, keeper):
        thread.start()
    try:
        wait_until(lambda: seen and seen[-1] == ["a"])
        redis_server.kill()
        wait_until(lambda: not follower.connected and not keeper.connected)
        polls, age_s = len(seen), follower.age_s
        wait_until(lambda: follower.age_s > age_s)
        assert len(seen) == polls
        redis_server.restart()
        wait_until(lambda: follower.connected and seen[-1] == ["a"])
    finally:
        follower.stop()
        keeper.stop()
    assert ids(registry) == []


def test_a_hanging_server_is_given_up_on(
    redis_server: PrivateRedis, registry: RedisRegistry
) -> None:
    assert redis_server.pid is not None
    os.kill(redis_server.pid, signal.SIGSTOP)
    try:
        with pytest.raises(RegistryUnavailable, match="Timeout"):
            registry.publish_lease(executor("a"))
    finally:
        os.kill(redis_server.pid, signal.SIGCONT)
    registry.publish_lease(executor("a"))


def test_an_outage_is_counted_call_by_call_and_logged_once(redis_server: PrivateRedis) -> None:
    metrics = CollectorRegistry()
    registry = connect(Settings(redis_url=redis_server.url), metrics)
    assert registry is not None
    redis_server.kill()
    with capture_logs() as lines:
        for _ in range(50):
            with pytest.raises(RegistryUnavailable):
                registry.set_strategy("", "topo_aware")
        redis_server.restart()
        registry.strategies()
    registry.close()
    assert [line["event"] for line in lines] == ["redis.unavailable", "redis.available"]
    counted = metrics.get_sample_value("sits_redis_errors_total", {"operation": "set_strategy"})
    assert counted == 50


def test_a_cluster_node_is_refused_at_start(start_redis: Start) -> None:
    node = start_redis(port=free_port(), config=cluster())
    for url in (node.url, f"redis://127.0.0.1:{node.port}"):
        with pytest.raises(SettingsError, match="Redis Cluster, which SITS does not use"):
            connect(Settings(redis_url=url))


def test_a_cluster_node_that_appears_later_is_named_as_the_reason(
    start_redis: Start, open_registry: Open
) -> None:
    port = free_port()
    registry = open_registry(redis_url=f"redis://127.0.0.1:{port}")
    start_redis(port=port, config=cluster())
    with pytest.raises(RegistryUnavailable, match="Redis Cluster, which SITS does not use"):
        registry.leases(ROLE_EXECUTOR)


def test_a_sentinel_given_as_a_server_is_refused_at_start(start_redis: Start) -> None:
    sentinel = start_redis(port=free_port(), sentinel=True)
    with pytest.raises(SettingsError, match="names a Sentinel as if it were the server"):
        connect(Settings(redis_url=f"redis://127.0.0.1:{sentinel.port}"))
