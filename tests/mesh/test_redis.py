"""Redis killed, emptied, replaced or full of rubbish: requests go on, its content comes back."""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
import redis

from sits_cli.mesh import Mesh
from sits_cli.private_redis import PrivateRedis
from sits_cli.supervisor import EXIT_WRONG_SETTING
from sits_cli.testing_load import Load
from sits_cli.testing_mesh import (
    log_lines,
    metric,
    pid_of,
    pids,
    plan,
    running,
    state_of,
    write_model,
)
from sits_core.testing import free_port, wait_until
from sits_protos.v1.link_pb2 import ROLE_EXECUTOR, ROLE_TOPOLOGY

pytestmark = [pytest.mark.mesh, pytest.mark.redis]

BACK_S = 20
PASSWORD = "p@ss:w/o#r%d +1"  # noqa: S105 - of a server that lives for one test
PUBLISHERS = ("topology", "executor-0", "executor-1")


def keys(url: str, mesh: Mesh, kind: str) -> list[str]:
    prefix = mesh.plan.env["SITS_REDIS_PREFIX"]
    with redis.Redis.from_url(url) as client:
        return [key.decode() for key in client.scan_iter(f"{{{prefix}}}:{kind}:*")]


def complete(url: str, mesh: Mesh) -> bool:
    """Both executors, a topology service and its snapshot are there."""
    try:
        leases, topologies = keys(url, mesh, "lease"), keys(url, mesh, "topology")
    except redis.ConnectionError:
        return False
    return len(leases) == len(mesh.addresses.executors) + 1 and len(topologies) == 1


def test_killed_and_empty_again_it_is_filled_by_those_who_live(mesh: Mesh) -> None:
    """Away for longer than leases last: executors stay, staleness grows, and all of it heals."""
    assert mesh.redis_url is not None
    before, age = pids(mesh), "sits_redis_age_seconds"
    with Load(mesh.addresses.front, clients=2) as load:
        mesh.kill("redis", restart=False)
        wait_until(lambda: metric(mesh.addresses.admin, age) > 6.5, BACK_S, "leases are over")
        load.wait_for_more()
        assert sum(p.hello.role == ROLE_EXECUTOR for p in state_of(mesh).peers) == 2
        assert not state_of(mesh).redis_connected
        mesh.revive("redis")
        wait_until(lambda: complete(mesh.redis_url or "", mesh), BACK_S, "Redis filled again")
        wait_until(lambda: metric(mesh.addresses.admin, age) < 2, BACK_S, "dispatcher connected")
        load.wait_for_more()
    assert load.all_right, load
    assert pids(mesh) == before


def test_rubbish_in_it_is_counted_and_skipped(mesh: Mesh, tmp_path: Path) -> None:
    """SEC-03: pickles and random bytes as records, as hints, and under our keys."""
    marker = tmp_path / "opened"

    class Crafted:
        def __reduce__(self) -> tuple[object, tuple[Path]]:
            return Path.touch, (marker,)

    assert mesh.redis_url is not None
    prefix, admin = mesh.plan.env["SITS_REDIS_PREFIX"], mesh.addresses.admin
    unreadable = "sits_redis_unreadable_records_total"
    before = metric(admin, unreadable)
    rubbish = pickle.dumps(Crafted())
    with redis.Redis.from_url(mesh.redis_url) as client, Load(mesh.addresses.front) as load:
        soon = {"rubbish": 2e12}
        for kind, index in (("lease:executor", "leases:executor"), ("topology", "topologies")):
            client.set(f"{{{prefix}}}:{kind}:rubbish", rubbish, px=5000)
            client.zadd(f"{{{prefix}}}:{index}", soon)
        client.hset(f"{{{prefix}}}:strategy", "brief", b"\xff\xfe no strategy")
        client.publish(f"{{{prefix}}}:changes", rubbish)
        wait_until(lambda: metric(admin, unreadable) > before, BACK_S, "counted")
        load.wait_for_more()
        client.hdel(f"{{{prefix}}}:strategy", "brief")
    assert load.all_right, load
    assert not marker.exists()


@dataclass
class Pair:
    """A primary and its replica behind one name, which is a link to a socket."""

    old: PrivateRedis
    new: PrivateRedis
    name: Path

    @property
    def url(self) -> str:
        return f"unix://:{quote(PASSWORD, safe='')}@{self.name}"

    def fail_over(self) -> None:
        """Connections to the old one stay open, and it refuses to be written to."""
        self.command(self.new, "REPLICAOF", "NO", "ONE")
        self.command(self.old, "REPLICAOF", "127.0.0.1", self.new.port)
        self.name.unlink()
        self.name.symlink_to(self.new.socket_path)

    @staticmethod
    def command(server: PrivateRedis, *words: str | int) -> object:
        with redis.Redis.from_url(server.url) as client:
            return client.execute_command(*words)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    name = tmp_path_factory.mktemp("name") / "redis.sock"
    common = ["repl-diskless-sync-delay 0", f'masterauth "{PASSWORD}"']
    with ExitStack() as servers:

        def start(*more: str) -> PrivateRedis:
            return servers.enter_context(
                PrivateRedis(port=free_port(), password=PASSWORD, config=[*common, *more])
            )

        old = start()
        new = start(f"replicaof 127.0.0.1 {old.port}")
        made = Pair(old, new, name)
        wait_until(lambda: b"master_link_status:up" in bytes(made_info(made)), what="replication")
        name.symlink_to(old.socket_path)
        yield made


def made_info(pair: Pair) -> bytes:
    with redis.Redis.from_url(pair.new.url, decode_responses=False) as client:
        client.set_response_callback("INFO", lambda raw, **_: raw)
        return client.execute_command("INFO", "replication")


@pytest.fixture(scope="module")
def replicated(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """On that Redis; one of its executors says that it runs on a GPU nobody knows."""
    models = tmp_path_factory.mktemp("cpu models")
    write_model(models, "brief", "sleep", more="instance_group { kind: KIND_CPU }", sleep_ms=2)
    own = plan(
        models,
        tmp_path_factory.mktemp("replicated"),
        env={"SITS_DISPATCHER_STRATEGY": "topo_aware"},
        service_env={"executor-1": {"SITS_EXECUTOR_DEVICE": "GPU-00000000-dead-beef"}},
        redis_url=pair.url,
    )
    with running(own, "brief") as made:
        yield made


def test_a_device_that_topology_does_not_know_is_used_and_named(replicated: Mesh) -> None:
    """NVM-04: no weight is applied to it by mistake; it takes part, and one line says so."""
    wait_until(
        lambda: log_lines(replicated, "dispatcher", "executor.unknown_device"), BACK_S, "a warning"
    )
    with Load(replicated.addresses.front) as load:
        load.wait_for_more(100)
    assert load.all_right, load
    shares = [metric(at, "sits_executor_rows_total") for _, at in replicated.addresses.executors]
    assert all(rows > 0 for rows in shares)
    (line,) = log_lines(replicated, "dispatcher", "executor.unknown_device")
    assert line["device"] == "GPU-00000000-dead-beef"
    assert [d for d in line["known"] if d.startswith("cpu:")]


def test_a_demoted_primary_is_left_for_the_new_one(replicated: Mesh, pair: Pair) -> None:
    """RED-02: at the first refusal; no process restarts, errors are counted, one line says why."""
    wait_until(lambda: complete(pair.new.url, replicated), BACK_S, "leases and topology")
    before = pids(replicated)
    with Load(replicated.addresses.front, clients=2) as load:
        load.wait_for_more()
        pair.fail_over()
        prefix = replicated.plan.env["SITS_REDIS_PREFIX"]
        with redis.Redis.from_url(pair.new.url) as client:
            for key in client.scan_iter(f"{{{prefix}}}:*"):
                client.delete(key)
        wait_until(lambda: complete(pair.new.url, replicated), BACK_S, "published to the new one")
        wait_until(lambda: state_of(replicated).redis_connected, BACK_S, "dispatcher connected")
        load.wait_for_more()
    assert load.all_right, load
    assert pids(replicated) == before
    for service in PUBLISHERS:
        assert len(log_lines(replicated, service, "redis.unavailable")) <= 1
    assert any(p.hello.role == ROLE_TOPOLOGY for p in state_of(replicated).peers)


def test_its_password_is_in_no_log_and_no_command_line(replicated: Mesh) -> None:
    """RED-05, in clear or percent-encoded."""
    secrets = (PASSWORD, quote(PASSWORD, safe=""))
    for service in replicated.names():
        arguments = Path(f"/proc/{pid_of(replicated, service)}/cmdline").read_text()
        log = (replicated.plan.log_dir / f"{service}.log").read_text()
        assert not any(secret in arguments or secret in log for secret in secrets)


@pytest.mark.parametrize(
    ("url", "text"),
    [("redis+cluster://127.0.0.1:7000", b"Cluster"), ("http://127.0.0.1:6379", b"SITS_REDIS_URL")],
)
@pytest.mark.parametrize("service", ["topology", "dispatcher"])
def test_a_url_that_cannot_work_stops_the_start_with_one_sentence(
    service: str, url: str, text: bytes
) -> None:
    """RED-03."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("SITS_")}
    command = [sys.executable, "-m", f"sits_{service}"]
    ended = subprocess.run(
        command, env=env | {"SITS_REDIS_URL": url}, capture_output=True, check=False, timeout=60
    )
    assert ended.returncode == EXIT_WRONG_SETTING
    assert text in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1
