"""Passwords, users and TLS in all combinations; the password shows nowhere (RED-05)."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import pytest
import redis
from prometheus_client import CollectorRegistry, generate_latest
from structlog.testing import capture_logs

from sits_cli.private_redis import PrivateRedis
from sits_core.redis_registry import RedisRegistry, connect
from sits_core.registry import RegistryUnavailable
from sits_core.settings import Settings, SettingsError
from sits_core.testing import free_port, wait_until
from sits_protos.v1.link_pb2 import ROLE_EXECUTOR
from sits_protos.v1.registry_pb2 import Lease
from sits_protos.v1.topology_pb2 import TopologySnapshot

pytestmark = pytest.mark.redis

NASTY = "p@ss:w/o#r%d+ 1?é"
DOCS = Path(__file__).parents[2] / "docs" / "redis.md"

Start = Callable[..., PrivateRedis]
Open = Callable[..., RedisRegistry]


def use_everything(registry: RedisRegistry) -> None:
    """Every code path that talks to the server, the subscriber's included."""
    told: list[None] = []
    end = registry.subscribe(lambda: told.append(None))
    wait_until(lambda: told, what="the subscription")
    lease = Lease(role=ROLE_EXECUTOR, id="a")
    registry.publish_lease(lease)
    wait_until(lambda: len(told) > 1, what="a hint")
    assert registry.leases(ROLE_EXECUTOR) == [lease]
    registry.withdraw_lease(ROLE_EXECUTOR, "a")
    registry.publish_topology(TopologySnapshot(host="h"))
    assert registry.topologies() == [TopologySnapshot(host="h")]
    registry.set_strategy("", "topo_aware")
    assert registry.strategies() == {"": "topo_aware"}
    end()


def acl_from_docs(password: str) -> list[str]:
    (line,) = (line for line in DOCS.read_text().splitlines() if line.startswith("ACL SETUSER"))
    return [word.replace("PASSWORD", password) for word in line.split()]


@pytest.fixture
def with_user(start_redis: Start) -> PrivateRedis:
    """A server whose default user has a password, and that knows the user of the docs."""
    server = start_redis(port=free_port(), password=NASTY)
    with redis.Redis.from_url(server.url) as admin:
        admin.execute_command(*acl_from_docs(NASTY))
    return server


@pytest.mark.parametrize("user", ["", "mesh"])
@pytest.mark.parametrize("form", ["tcp", "unix"])
@pytest.mark.parametrize("source", ["url", "file"])
def test_special_characters_work_on_every_path(
    with_user: PrivateRedis, open_registry: Open, tmp_path: Path, user: str, form: str, source: str
) -> None:
    place = f"127.0.0.1:{with_user.port}" if form == "tcp" else str(with_user.socket_path)
    scheme = "redis" if form == "tcp" else "unix"
    if source == "url":
        registry = open_registry(redis_url=f"{scheme}://{user}:{quote(NASTY, safe='')}@{place}")
    else:
        file = tmp_path / "password"
        file.write_text(NASTY + "\n")
        login = f"{user}@" if user else ""
        registry = open_registry(
            redis_url=f"{scheme}://{login}{place}", redis_password_file=str(file)
        )
    use_everything(registry)


def test_the_documented_user_may_do_nothing_else(with_user: PrivateRedis) -> None:
    with (
        redis.Redis(port=with_user.port, username="mesh", password=NASTY) as client,
        pytest.raises(redis.exceptions.NoPermissionError),
    ):
        client.set("{other}:key", "x")


def test_a_missing_permission_is_named(with_user: PrivateRedis, open_registry: Open) -> None:
    with redis.Redis.from_url(with_user.url) as admin:
        admin.execute_command("ACL", "SETUSER", "mesh", "-hgetall")
    url = f"redis://mesh:{quote(NASTY, safe='')}@127.0.0.1:{with_user.port}"
    with pytest.raises(RegistryUnavailable, match="hgetall"):
        open_registry(redis_url=url).strategies()


def test_sentinels_take_the_password_when_told_to(start_redis: Start, open_registry: Open) -> None:
    server = start_redis(port=free_port(), password=NASTY)
    sentinel = start_redis(
        port=free_port(),
        password=NASTY,
        sentinel=True,
        config=[f"sentinel monitor mesh 127.0.0.1 {server.port} 1"],
    )
    with redis.Redis.from_url(sentinel.url) as admin:
        admin.execute_command("SENTINEL", "SET", "mesh", "auth-pass", NASTY)
    url = f"redis+sentinel://:{quote(NASTY, safe='')}@127.0.0.1:{sentinel.port}/mesh"
    use_everything(open_registry(redis_url=f"{url}?sentinel_auth=yes"))
    with pytest.raises(RegistryUnavailable, match=r"NOAUTH|Authentication"):
        open_registry(redis_url=url).strategies()


@pytest.mark.parametrize("password", [None, NASTY], ids=["no password", "password"])
def test_tls_with_a_private_ca_works_with_and_without_password(
    start_redis: Start,
    open_registry: Open,
    start_proxy: Callable[..., object],
    authority: object,
    password: str | None,
) -> None:
    proxy = start_proxy(start_redis(password=password).socket_path, authority.context("localhost"))
    login = f":{quote(password, safe='')}@" if password else ""
    use_everything(
        open_registry(
            redis_url=f"rediss://{login}localhost:{proxy.port}",
            redis_ca_file=str(authority.file),
        )
    )


def test_tls_covers_sentinels_and_the_server_they_name(
    start_redis: Start, open_registry: Open, start_proxy: Callable[..., object], authority: object
) -> None:
    context = authority.context("127.0.0.1")
    server = start_proxy(start_redis().socket_path, context)
    sentinel = start_redis(
        port=free_port(), sentinel=True, config=[f"sentinel monitor mesh 127.0.0.1 {server.port} 1"]
    )
    # The Sentinel cannot reach a TLS port: it must not find that out while we look.
    with redis.Redis.from_url(sentinel.url) as admin:
        admin.execute_command("SENTINEL", "SET", "mesh", "down-after-milliseconds", 600_000)
    front = start_proxy(sentinel.socket_path, context)
    use_everything(
        open_registry(
            redis_url=f"rediss+sentinel://127.0.0.1:{front.port}/mesh",
            redis_ca_file=str(authority.file),
        )
    )


@pytest.mark.parametrize(
    ("names", "options", "trusted"),
    [
        (("elsewhere.example",), {}, True),
        (("localhost",), {"not_after": datetime(2020, 1, 1, tzinfo=UTC)}, True),
        (("localhost",), {}, False),
    ],
    ids=["another name", "expired", "unknown CA"],
)
def test_a_wrong_certificate_is_refused(
    redis_server: PrivateRedis,
    open_registry: Open,
    start_proxy: Callable[..., object],
    authority: object,
    names: tuple[str, ...],
    options: dict[str, object],
    trusted: bool,
) -> None:
    proxy = start_proxy(redis_server.socket_path, authority.context(*names, **options))
    ca = {"redis_ca_file": str(authority.file)} if trusted else {}
    registry = open_registry(redis_url=f"rediss://localhost:{proxy.port}", **ca)
    with pytest.raises(RegistryUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        registry.strategies()


def test_tls_is_not_given_up_when_the_server_speaks_none(
    start_redis: Start, open_registry: Open
) -> None:
    server = start_redis(port=free_port())
    with pytest.raises(RegistryUnavailable):
        open_registry(redis_url=f"rediss://127.0.0.1:{server.port}").strategies()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"redis_url": "redis://ann@h"}, "no password"),
        ({"redis_url": "redis://:x@h", "redis_password_file": "f"}, "use one of them"),
        ({"redis_url": "redis://h", "redis_password_file": "f"}, "SITS_REDIS_PASSWORD_FILE"),
        ({"redis_url": "redis://h", "redis_password_file": os.devnull}, "is empty"),
        ({"redis_url": "redis://h", "redis_ca_file": "f"}, "does not ask for TLS"),
        ({"redis_url": "rediss://h", "redis_ca_file": "f"}, "SITS_REDIS_CA_FILE"),
    ],
)
def test_settings_that_do_not_fit_together_stop_the_start(
    settings: dict[str, str], named: str
) -> None:
    with pytest.raises(SettingsError, match=named):
        connect(Settings(**settings))


def test_a_rotated_password_is_used_without_a_restart(
    start_redis: Start, open_registry: Open, tmp_path: Path
) -> None:
    server, file = start_redis(password="first"), tmp_path / "password"  # noqa: S106 - made up
    file.write_text("first")
    registry = open_registry(
        redis_url=f"unix://{server.socket_path}", redis_password_file=str(file)
    )
    use_everything(registry)
    with redis.Redis.from_url(server.url) as admin:
        admin.config_set("requirepass", NASTY)
        admin.client_kill_filter(_type="normal", skipme=True)
        admin.client_kill_filter(_type="pubsub", skipme=True)
    with pytest.raises(RegistryUnavailable, match="invalid"):
        registry.strategies()
    file.write_text(NASTY)
    use_everything(registry)


SCRIPT = textwrap.dedent("""
    import sys
    from pathlib import Path
    from prometheus_client import CollectorRegistry, generate_latest
    from sits_core import logs
    from sits_core.keepers import Follower
    from sits_core.redis_registry import connect
    from sits_core.registry import RegistryUnavailable
    from sits_core.settings import Settings

    settings, metrics = Settings(log_level="debug"), CollectorRegistry()
    logs.configure("test", settings)
    registry = connect(settings, metrics)
    print(settings, registry, registry._server.client, Follower(registry, registry.strategies))
    try:
        registry.strategies()
    except RegistryUnavailable as error:
        print(error)
    print(generate_latest(metrics).decode())
    print(Path("/proc/self/cmdline").read_text())
    sys.exit(repr(registry))
""")


@pytest.mark.parametrize("right", [True, False], ids=["accepted", "refused"])
def test_the_password_is_in_no_output_and_no_command_line(start_redis: Start, right: bool) -> None:
    server = start_redis(password=NASTY)
    login = quote(NASTY if right else f"not {NASTY}", safe="")
    url = f"unix://:{login}@{server.socket_path}"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "SITS_REDIS_URL": url},
        capture_output=True,
        text=True,
        timeout=60,
    )
    shown = done.stdout + done.stderr + Path(f"/proc/{server.pid}/cmdline").read_text()
    assert str(server.socket_path) in shown
    assert ("redis.unavailable" in shown) is not right
    for secret in (NASTY, quote(NASTY, safe=""), quote(NASTY)):
        assert secret not in shown


def test_a_server_that_repeats_what_it_was_told_reveals_nothing(
    redis_server: PrivateRedis,
) -> None:
    metrics = CollectorRegistry()
    registry = connect(Settings(redis_url=f"unix://:hunter2@{redis_server.socket_path}"), metrics)
    error = redis.exceptions.ResponseError("unknown command 'HELLO', with args: '3' 'hunter2'")
    with capture_logs() as lines:
        told = registry._server.failed("connect", error)
    registry.close()
    assert "***" in str(told)
    assert "hunter2" not in f"{told} {lines} {generate_latest(metrics)!r}"
