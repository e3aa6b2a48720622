"""From settings to a redis-py client: passwords read anew at every connect, TLS always
verified, servers of the wrong kind refused."""

from pathlib import Path
from typing import Any, cast

from redis import ConnectionPool, Redis, SSLConnection, UnixDomainSocketConnection
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, Connection
from redis.credentials import CredentialProvider
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.retry import Retry
from redis.sentinel import Sentinel

from sits_core.redis_url import CLUSTER, VARIABLE, RedisUrl
from sits_core.settings import Settings, SettingsError

# A call takes two attempts, each a connect and an answer: a second or two in all when
# the server hangs.
CONNECT_TIMEOUT_S = ANSWER_TIMEOUT_S = 0.5
HEALTH_CHECK_PERIOD_S = 5


class WrongServer(RedisError):
    """What answers is Redis, but not of a kind that SITS works with."""


class Credentials(CredentialProvider):
    """User and password; a password from a file is read at every connect, which is what
    makes its rotation work while running."""

    def __init__(self, username: str | None, password: str | None, file: Path | None) -> None:
        self._username, self._password, self._file = username, password, file

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        password = self.password()
        return (password,) if self._username is None else (self._username, password)

    def password(self) -> str:
        """Raises redis' ConnectionError, so that a file being replaced is retried."""
        if self._file is None:
            return self._password or ""
        try:
            password = self._file.read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise RedisConnectionError(
                f"SITS_REDIS_PASSWORD_FILE cannot be read: {type(error).__name__}"
            ) from None
        if not password:
            raise RedisConnectionError("SITS_REDIS_PASSWORD_FILE is empty")
        return password

    def __repr__(self) -> str:
        return f"<Credentials of {self._username or 'default'}>"


def credentials(url: RedisUrl, settings: Settings) -> Credentials | None:
    """None when the server wants none. Raises `SettingsError` when they are incomplete."""
    file = settings.redis_password_file
    if file is None:
        if url.username and not url.password:
            raise SettingsError(
                f"{VARIABLE} names a user but no password: write it as user:password@, "
                "or set SITS_REDIS_PASSWORD_FILE"
            )
        return Credentials(url.username, url.password, None) if url.password else None
    if url.password:
        raise SettingsError(
            f"{VARIABLE} holds a password and SITS_REDIS_PASSWORD_FILE is set: use one of them"
        )
    found = Credentials(url.username, None, Path(file))
    try:
        found.password()
    except RedisConnectionError as error:
        raise SettingsError(str(error)) from None
    return found


def open_client(url: RedisUrl, login: Credentials | None, settings: Settings) -> Redis:
    """Does not connect. Raises `SettingsError` when the CA file does not fit."""
    # Any: redis-py checks none of these either.
    common: dict[str, Any] = {
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "socket_timeout": ANSWER_TIMEOUT_S,
        "health_check_interval": HEALTH_CHECK_PERIOD_S,
        "protocol": 2,
        "driver_info": None,  # telling it needs a permission of its own
        **_tls(url, settings),
    }
    server = {
        **common,
        "db": url.db,
        "credential_provider": login,
        "redis_connect_func": _greet,
        "retry": Retry(NoBackoff(), 1),
    }
    if url.primary_name is not None:
        return _sentinel_client(url, login, common, server)
    if url.socket_path is not None:
        pool = ConnectionPool(UnixDomainSocketConnection, path=url.socket_path, **server)
    else:
        (address,) = url.addresses
        server |= {"host": address.host, "port": address.port}
        pool = ConnectionPool(SSLConnection if url.tls else Connection, **server)
    return Redis(connection_pool=pool)


def _sentinel_client(
    url: RedisUrl, login: Credentials | None, common: dict[str, Any], server: dict[str, Any]
) -> Redis:
    """Its connections ask the Sentinels for the primary each time they are opened."""
    secure = {"ssl": True} if url.tls else {}
    asking = {**common, **secure, "retry": Retry(NoBackoff(), 0)}
    if url.sentinel_auth:
        asking["credential_provider"] = login
    places = [(address.host, address.port) for address in url.addresses]
    sentinels = Sentinel(places, sentinel_kwargs=asking)  # type: ignore[no-untyped-call] # redis-py
    client = sentinels.master_for(url.primary_name, **server, **secure)  # type: ignore[no-untyped-call] # redis-py
    return cast("Redis", client)


def _tls(url: RedisUrl, settings: Settings) -> dict[str, Any]:
    path = settings.redis_ca_file
    if not url.tls:
        if path is not None:
            raise SettingsError(
                f"SITS_REDIS_CA_FILE is set but {VARIABLE} does not ask for TLS: write rediss://"
            )
        return {}
    if path is not None and not Path(path).is_file():
        raise SettingsError("SITS_REDIS_CA_FILE: there is no such file")
    return {"ssl_ca_certs": path, "ssl_cert_reqs": "required", "ssl_check_hostname": True}


def _greet(connection: AbstractConnection) -> None:
    """Log in, then make sure that this is a server we can work with."""
    connection.on_connect()  # type: ignore[no-untyped-call] # redis-py
    connection.send_command("HELLO", check_health=False)  # type: ignore[no-untyped-call] # redis-py
    answer = connection.read_response()
    mode = dict(zip(answer[::2], answer[1::2], strict=False)).get(b"mode")
    if mode == b"cluster":
        raise WrongServer(CLUSTER)
    if mode == b"sentinel":
        raise WrongServer(
            f"{VARIABLE} names a Sentinel as if it were the server: "
            "write redis+sentinel://host:26379/name"
        )
