"""Ports, Redis, and the clocks of both."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sits_cli import health
from sits_cli.doctor.finding import Environ, Finding, good, note, problem, warning
from sits_cli.ports import EXECUTORS as EXECUTORS_OF_UP
from sits_cli.ports import configured, in_use
from sits_cli.private_redis import server_binary
from sits_core.registry import RegistryUnavailable
from sits_core.settings import Settings, SettingsError, load

if TYPE_CHECKING:
    from redis import Redis

ANSWER_S = 1.0
MAX_OFFSET_S = 0.25
"""Deadlines are instants: clocks that differ by more end requests early or late."""
EXECUTORS = "SITS_DISPATCHER_EXECUTORS"


def ports(environ: Environ) -> Iterator[Finding]:
    """Each is free, or one of ours answers there."""
    free = []
    try:
        listening = configured(EXECUTORS_OF_UP, {k: v for k, v in environ.items() if v}).all()
    except SettingsError as error:
        yield problem("ports", str(error), "set it right, or unset it")
        return
    for name, address in listening.items():
        if not in_use(address):
            free.append(address)
        elif _answers(name.split()[0], address, environ):
            yield good("ports", f"{address} answers ({name})")
        else:
            yield problem(
                "ports", f"{address} ({name}) is taken, and what has it is not ready or not SITS",
                f"`ss -ltnp` names it: stop it, or choose another port with {name.split()[0]}; "
                "if it is ours, its log says why it is not ready",
            )  # fmt: skip
    if free:
        which = "all addresses" if len(free) == len(listening) else ", ".join(free)
        yield good("ports", f"{which} free")


def _answers(name: str, address: str, environ: Environ) -> bool:
    if name.endswith(("_METRICS_BIND", "_ADMIN_BIND")):
        return _has_metrics(address) or bool(environ.get("SITS_TLS_CERT_FILE"))
    return health.ready(address, ANSWER_S, environ)


def _has_metrics(address: str) -> bool:
    from urllib.error import URLError
    from urllib.request import urlopen

    try:
        with urlopen(f"http://{address}/metrics", timeout=ANSWER_S) as page:
            return b"sits_" in page.read()
    except (URLError, OSError, ValueError):
        return False


def redis(environ: Environ) -> Iterator[Finding]:
    if not environ.get("SITS_REDIS_URL"):
        yield _without(environ)
        return
    # Slow to import, and most commands ask no Redis.
    from prometheus_client import CollectorRegistry

    from sits_core.redis_server import RedisServer

    known = {k: v for k, v in environ.items() if k.startswith("SITS_REDIS_")}
    try:
        server = RedisServer(load(Settings, "cli", known), CollectorRegistry())
        server.check()
        role, offset_s = server.call("doctor", _look)
    except SettingsError as error:
        yield problem("redis", str(error), "set it right")
    except RegistryUnavailable as error:
        yield problem("redis", str(error), "start it, or set SITS_REDIS_URL to where it is")
    else:
        yield _role(str(server.url), role)
        yield _offset(offset_s)
        server.close()


def _look(client: "Redis") -> tuple[str, float]:
    """Its role, and how far its clock is ahead of ours."""
    role = client.execute_command("ROLE")[0]  # type: ignore[no-untyped-call] # redis-py
    before_s = time.time()
    seconds, micros = client.time()
    return role.decode(), seconds + micros / 1e6 - (before_s + time.time()) / 2


def _role(url: str, role: str) -> Finding:
    if role == "master":
        return good("redis", f"{url} answers, and takes writes")
    return problem(
        "redis", f"{url} is a {role}: nobody can write there",
        "name the primary, or the Sentinels (redis+sentinel://host:26379/name)",
    )  # fmt: skip


def _offset(offset_s: float) -> Finding:
    text = f"Redis' clock is {abs(offset_s) * 1e3:.0f} ms {'ahead' if offset_s > 0 else 'behind'}"
    if abs(offset_s) <= MAX_OFFSET_S:
        return good("clock", text)
    return problem("clock", text, "let NTP or PTP keep the clocks of all machines together")


def _without(environ: Environ) -> Finding:
    try:
        server_binary()
    except SettingsError as error:
        if environ.get(EXECUTORS):
            return note("redis", f"none; executors are those of {EXECUTORS}")
        return warning("redis", str(error), f"or name the executors with {EXECUTORS}")
    return good("redis", "SITS_REDIS_URL is not set: `sits up` starts a private one")
