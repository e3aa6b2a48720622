"""Failover while connections stay open: publishing goes on at the new primary (RED-02)."""

from collections.abc import Callable
from itertools import count

import pytest
import redis
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from sits_cli.private_redis import PrivateRedis
from sits_core.keepers import Periodic
from sits_core.redis_registry import RedisRegistry, connect
from sits_core.settings import Settings
from sits_core.testing import free_port, wait_until
from sits_protos.v1.topology_pb2 import TopologySnapshot

pytestmark = pytest.mark.redis

Start = Callable[..., PrivateRedis]


def start_primary(start_redis: Start) -> PrivateRedis:
    return start_redis(port=free_port(), config=["repl-diskless-sync-delay 0"])


def replica_of(primary: PrivateRedis, start_redis: Start) -> PrivateRedis:
    following = ["repl-diskless-sync-delay 0", f"replicaof 127.0.0.1 {primary.port}"]
    replica = start_redis(port=free_port(), config=following)
    wait_until(lambda: command(replica, "INFO", "replication")["master_link_status"] == "up")
    return replica


def command(server: PrivateRedis, *words: str | int) -> object:
    with redis.Redis.from_url(server.url) as client:
        return client.execute_command(*words)


def is_primary(server: PrivateRedis) -> bool:
    try:
        return command(server, "ROLE")[0] == b"master"
    except redis.ConnectionError:  # a promoted server drops its clients
        return False


def failover_begins(sentinel: PrivateRedis) -> bool:
    try:
        return command(sentinel, "SENTINEL", "FAILOVER", "mesh") == b"OK"
    except redis.ResponseError as error:
        if "NOGOODSLAVE" not in str(error):
            raise
        return False  # it has not heard enough of the replica yet


def version_at(server: PrivateRedis) -> int:
    data = command(server, "GET", "{sits}:topology:h")
    return TopologySnapshot.FromString(data).version if isinstance(data, bytes) else 0


def publisher(registry: RedisRegistry) -> Periodic:
    versions = count(1)
    return Periodic(
        lambda: registry.publish_topology(TopologySnapshot(host="h", version=next(versions))),
        0.02,
        "publisher",
    )


def test_a_demoted_primary_behind_a_repointed_name_is_left_at_the_first_refusal(
    start_redis: Start, start_proxy: Callable[..., object]
) -> None:
    old = start_primary(start_redis)
    new = replica_of(old, start_redis)
    name = start_proxy(old.socket_path)
    metrics = CollectorRegistry()
    registry = connect(Settings(redis_url=f"redis://127.0.0.1:{name.port}"), metrics)
    publishing, told = publisher(registry), []
    registry.subscribe(lambda: told.append(None))
    publishing.start()
    try:
        wait_until(lambda: version_at(new) > 2 and told)
        with capture_logs() as lines:
            command(new, "REPLICAOF", "NO", "ONE")
            command(old, "REPLICAOF", "127.0.0.1", new.port)
            wait_until(lambda: not publishing.connected, what="refusal by the old primary")
            name.target = new.socket_path
            version = version_at(new)
            wait_until(lambda: version_at(new) > version + 2, what="publishing to the new one")
        wait_until(lambda: publishing.connected)
        hints = len(told)
        command(old, "REPLICAOF", "NO", "ONE")  # parted: hints come from the new one alone
        wait_until(lambda: len(told) > hints + 2, what="hints from the new primary")
    finally:
        publishing.stop()
        registry.close()
    labels = {"operation": "publish_topology"}
    assert (metrics.get_sample_value("sits_redis_errors_total", labels) or 0) > 0
    assert len([line for line in lines if line["log_level"] == "warning"]) == 1


@pytest.mark.parametrize("lost", ["demoted", "killed"])
def test_sentinels_lead_to_the_new_primary(start_redis: Start, lost: str) -> None:
    old = start_primary(start_redis)
    new = replica_of(old, start_redis)
    sentinel = start_redis(
        port=free_port(),
        sentinel=True,
        config=[
            f"sentinel monitor mesh 127.0.0.1 {old.port} 1",
            "sentinel down-after-milliseconds mesh 300",
            "sentinel failover-timeout mesh 2000",
        ],
    )
    replicas = ("SENTINEL", "REPLICAS", "mesh")
    wait_until(lambda: command(sentinel, *replicas), what="the Sentinel to know the replica")
    registry = connect(
        Settings(redis_url=f"redis+sentinel://127.0.0.1:1,127.0.0.1:{sentinel.port}/mesh")
    )
    publishing = publisher(registry)
    publishing.start()
    try:
        wait_until(lambda: version_at(new) > 2)
        if lost == "killed":
            old.kill()
        else:
            wait_until(lambda: failover_begins(sentinel), what="a replica fit to be promoted")
        wait_until(lambda: is_primary(new), 20, "promotion")
        if lost == "demoted":  # the Sentinel would do so after ten seconds
            command(old, "REPLICAOF", "127.0.0.1", new.port)
        version = version_at(new)
        wait_until(lambda: version_at(new) > version + 2, 20, "publishing to the new primary")
    finally:
        publishing.stop()
        registry.close()
