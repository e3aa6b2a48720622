"""SITS_REDIS_URL as a value. Its errors say what is wrong without showing any of it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn
from urllib.parse import parse_qsl, unquote

from sits_core.settings import SettingsError

VARIABLE = "SITS_REDIS_URL"
FORMS = (
    "redis://[user:password@]host[:port][/db], rediss:// for TLS, "
    "unix://[user:password@]/path[?db=N], or "
    "redis+sentinel://[user:password@]host[:port],host[:port]/name[/db], rediss+sentinel:// for TLS"
)
CLUSTER = (
    f"{VARIABLE} names a Redis Cluster, which SITS does not use: "
    "give it a single server, or Sentinels (redis+sentinel://host:26379/name)"
)
REDIS_PORT, SENTINEL_PORT = 6379, 26379
MAX_DB = 1 << 16

# The user part reaches to the last "@", so that a password holding "/", "?" or "#" is
# read right even when it was not percent-encoded. A path never starts one.
_URL = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+]*)://"
    r"(?:(?!/)(?P<user>.*)@)?(?P<hosts>[^/?#@]*)(?P<path>/[^?#]*)?(?:\?(?P<query>[^#]*))?"
)
_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<name>[^\[\]:\s]+))(?::(?P<port>\d{1,5}))?")
_SERVER_SCHEMES = ("redis", "rediss")
_SENTINEL_SCHEMES = ("redis+sentinel", "rediss+sentinel")


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if ":" not in self.host else f"[{self.host}]:{self.port}"


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """Where Redis is. Exactly one of `addresses` and `socket_path` is set.

    `primary_name` is what Sentinels call the primary; the addresses are theirs then, and
    `sentinel_auth` tells whether they want the same user and password.
    """

    addresses: tuple[Address, ...] = ()
    socket_path: str | None = None
    primary_name: str | None = None
    tls: bool = False
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    sentinel_auth: bool = False

    def __str__(self) -> str:
        """For logs: the place, never the user part."""
        return self.socket_path or ",".join(map(str, self.addresses))


def parse(url: str) -> RedisUrl:
    """Raises `SettingsError` naming SITS_REDIS_URL."""
    match = _URL.fullmatch(url.strip())
    if match is None:
        _refuse(f"expected {FORMS}")
    scheme = match["scheme"].lower()
    if "cluster" in scheme:
        raise SettingsError(CLUSTER)
    username, password = _user(match["user"] or "")
    path, options = unquote(match["path"] or ""), _options(match["query"] or "", scheme)
    if scheme == "unix":
        if match["hosts"] or len(path) < len("/x"):
            _refuse("unix:// needs the absolute path of a socket, as in unix:///run/redis.sock")
        return RedisUrl(socket_path=path, db=_db(options), username=username, password=password)
    if scheme not in _SERVER_SCHEMES + _SENTINEL_SCHEMES:
        _refuse(f"expected {FORMS}")
    sentinel = scheme in _SENTINEL_SCHEMES
    name, db = _name_and_db(path, sentinel)
    return RedisUrl(
        addresses=_addresses(match["hosts"], sentinel),
        primary_name=name,
        tls=scheme.startswith("rediss"),
        db=_db({"db": db, **options} if db else options),
        username=username,
        password=password,
        sentinel_auth=options.get("sentinel_auth") == "yes",
    )


def _refuse(problem: str) -> NoReturn:
    raise SettingsError(f"{VARIABLE}: {problem}") from None


def _user(text: str) -> tuple[str | None, str | None]:
    username, _, password = text.partition(":")
    return unquote(username) or None, unquote(password) or None


def _options(query: str, scheme: str) -> Mapping[str, str]:
    """Nothing here may weaken TLS or carry a secret, so only what we know is let through."""
    known = {"db"} | ({"sentinel_auth"} if scheme in _SENTINEL_SCHEMES else set())
    options = dict(parse_qsl(query, keep_blank_values=True))
    if not options.keys() <= known:
        _refuse(f"unknown option after '?', expected {' or '.join(sorted(known))}")
    if options.get("sentinel_auth", "no") not in ("yes", "no"):
        _refuse("sentinel_auth must be yes or no")
    return options


def _name_and_db(path: str, sentinel: bool) -> tuple[str | None, str]:
    parts = path.strip("/").split("/")
    if sentinel and not parts[0]:
        _refuse(
            "redis+sentinel:// needs the primary's name, as in redis+sentinel://host:26379/name"
        )
    name = parts.pop(0) if sentinel else None
    if len(parts) > 1:
        _refuse("too many parts after the host; expected the number of a database")
    return name, parts[0] if parts else ""


def _db(options: Mapping[str, str]) -> int:
    text = options.get("db", "0")
    if not (text.isascii() and text.isdigit() and int(text) < MAX_DB):
        _refuse("the database must be a number, as in redis://host/0")
    return int(text)


def _addresses(hosts: str, sentinel: bool) -> tuple[Address, ...]:
    texts = hosts.split(",")
    if len(texts) > 1 and not sentinel:
        _refuse("several hosts are for redis+sentinel:// only")
    return tuple(_address(text, SENTINEL_PORT if sentinel else REDIS_PORT) for text in texts)


def _address(text: str, default_port: int) -> Address:
    match = _HOST.fullmatch(text)
    port = int(match["port"] or default_port) if match else 0
    if match is None or not 0 < port < 1 << 16:
        _refuse("after '@', if any, expected host or host:port with a port of 1 to 65535")
    return Address(match["v6"] or match["name"], port)
