"""Settings that all services share, read from `SITS_*` variables."""

import os
import re
import socket
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

SERVICES = ("preprocess", "dispatcher", "executor", "topology")
LOOPBACK = ("127.0.0.1", "::1", "localhost")
AUTO_CPUS = "auto"
_CPUS = re.compile(r"([0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*)?")
MAX_PORT = 65_535


class SettingsError(Exception):
    """A setting is wrong; the text names the variable and what it expects."""


def _cpus(value: str) -> str:
    if not _CPUS.fullmatch(value):
        raise ValueError(f"expected processors such as 0-3,8, got {value!r}")
    return value


def _cpus_or_auto(value: str) -> str:
    if value != AUTO_CPUS and not _CPUS.fullmatch(value):
        raise ValueError(f"expected processors such as 0-3,8, or {AUTO_CPUS}, got {value!r}")
    return value


Cpus = Annotated[str, AfterValidator(_cpus)]
CpusOrAuto = Annotated[str, AfterValidator(_cpus_or_auto)]
"""The same, or one that nobody else has taken."""


def _address(value: str) -> str:
    """Raises `ValueError` unless it is host:port, or unix:path."""
    port = value.rpartition(":")[2]
    unix = value.startswith("unix:")
    if not unix and not (":" in value and port.isdecimal() and int(port) <= MAX_PORT):
        raise ValueError(f"expected host:port with a port of at most {MAX_PORT}, got {value!r}")
    return value


def _addresses(value: str) -> str:
    for address in filter(None, map(str.strip, value.split(","))):
        _address(address)
    return value


Address = Annotated[str, AfterValidator(_address)]
Addresses = Annotated[str, AfterValidator(_addresses)]
"""Several, between commas."""


class Settings(BaseSettings):
    """Base of each service's settings. Frozen; field `x` is variable `SITS_X`."""

    # Blank is unset: compose files write SITS_MESH_TOKEN=${SITS_MESH_TOKEN:-}, and a blank
    # token must not count as one.
    model_config = SettingsConfigDict(
        env_prefix="SITS_", frozen=True, extra="ignore", env_ignore_empty=True
    )

    redis_url: SecretStr | None = Field(
        default=None, description="redis://, rediss://, unix:// or redis+sentinel:// server"
    )
    redis_password_file: str | None = Field(
        default=None, description="file holding the Redis password, read at every connect"
    )
    redis_ca_file: str | None = Field(
        default=None, description="CA that signed the Redis server certificate"
    )
    redis_prefix: str = Field(
        default="sits",
        pattern=r"^[a-z0-9][a-z0-9-]{0,62}$",
        description="first part of every Redis key",
    )
    # The files come before the tokens: validators see the fields above only.
    mesh_token_file: str | None = Field(
        default=None, description="file holding the mesh token, instead of SITS_MESH_TOKEN"
    )
    admin_token_file: str | None = Field(
        default=None, description="file holding the admin token, instead of SITS_ADMIN_TOKEN"
    )
    mesh_token: SecretStr | None = Field(
        default=None,
        min_length=1,
        validate_default=True,
        description="shared secret of the services; required off loopback",
    )
    admin_token: SecretStr | None = Field(
        default=None,
        min_length=1,
        validate_default=True,
        description="secret for control calls; without it they work on loopback only",
    )
    tls_cert_file: str | None = Field(
        default=None, description="PEM certificate chain of this service; TLS on every hop"
    )
    tls_key_file: str | None = Field(default=None, description="PEM key of that certificate")
    tls_ca_file: str | None = Field(
        default=None, description="PEM CA that signed the certificates of the mesh"
    )
    tls_require_client_cert: bool = Field(
        default=True, description="with TLS, refuse callers without a certificate of the CA"
    )
    tls_server_name: str | None = Field(
        default=None,
        description="name that certificates of other services must carry, instead of the host at "
        "which they are reached",
    )
    tls_metrics: bool = Field(
        default=True, description="with TLS, the metrics ports have it too; false = plain HTTP"
    )
    advertise_host: str | None = Field(
        default=None,
        description="name or address at which other services reach this one; default: the host "
        "of the bind, or this machine's name when it binds to all addresses",
    )
    tenants_file: str | None = Field(
        default=None,
        description="JSON file of tenants with their tiers and quotas, read at start; the same for "
        "preprocess and dispatcher",
    )
    max_message_bytes: int = Field(
        default=256 << 20,
        ge=1 << 20,
        le=(1 << 31) - 1,
        description="largest gRPC message, on every hop and in both directions",
    )
    shm_dir: str = Field(
        default="/dev/shm",  # noqa: S108 - this is where shared memory lives
        description="directory for payload pools, shared by services of one host",
    )
    force_grpc_links: bool = Field(
        default=False,
        description="no rings in shared memory between services; for tests and benchmarks",
    )
    cpus: Cpus = Field(
        default="",
        description="processors that this process may run on, such as 0-3,8; unset = all",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least severe log line written"
    )
    log_format: Literal["json", "console"] = Field(default="json", description="shape of log lines")
    trace_ratio: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="share of requests traced when the client does not decide",
    )
    trace_ring: int = Field(
        default=8192, ge=0, le=1 << 20, description="finished spans kept in memory for `sits trace`"
    )
    reflection: bool = Field(default=False, description="serve gRPC reflection")
    drain_grace_s: float = Field(
        default=10.0, ge=0, description="seconds to finish accepted work after SIGTERM"
    )

    @field_validator("mesh_token", "admin_token", mode="before")
    @classmethod
    def _from_file(cls, value: object, info: ValidationInfo) -> object:
        path = info.data.get(f"{info.field_name}_file")
        if not path:
            return value
        if value is not None:
            raise ValueError("set it, or name a file with it, not both")
        return _token_in(path)

    def secret(self, name: str) -> str | None:
        value = getattr(self, name)
        return value.get_secret_value() if value is not None else None


_PATTERN = "string_pattern_mismatch"
_NO_TEXT = {
    "literal_error", "enum", "finite_number",
    "greater_than", "greater_than_equal", "less_than", "less_than_equal",
}  # fmt: skip
"""Kinds of pydantic's errors about numbers and choices, beside those about reading them."""

S = TypeVar("S", bound=Settings)
T = TypeVar("T")


def load(cls: type[S], service: str, environ: dict[str, str] | None = None, **values: Any) -> S:
    """Settings of `service`, or `SettingsError` naming the first wrong variable.

    `values` win over the environment. A `SITS_*` variable that is neither shared,
    nor this service's, nor prefixed with another service's name, is an error.
    """
    env = dict(os.environ if environ is None else environ)
    others = tuple(f"SITS_{s.upper()}_" for s in (*SERVICES, "cli") if s != service)
    known = {f"SITS_{name.upper()}": name for name in cls.model_fields}
    for name in sorted(env):
        if name.startswith("SITS_") and name not in known and not name.startswith(others):
            raise SettingsError(f"unknown setting {name}; {_instead(name, service, known)}")
    given = {field: env[name] for name, field in known.items() if env.get(name)}
    # Defaults as well: for a field without a value the constructor looks at os.environ.
    defaults = {field: info.default for field, info in cls.model_fields.items()}
    try:
        return cls(**{**defaults, **given, **values})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = "SITS_" + "_".join(str(part) for part in first["loc"]).upper()
        came = f", got {first['input']!r}" if _may_be_shown(first["type"]) else ""
        text = first["msg"] + came
        if first["type"] == _PATTERN:  # which few read with ease
            meant = cls.model_fields[str(first["loc"][0])].description
            shown = "what is not shown" if "@" in first["input"] else repr(first["input"])
            text = f"got {shown}, expected {first['ctx']['pattern']}: {meant}"
        raise SettingsError(f"{name}: {text}") from None


def _instead(name: str, service: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, known, n=1, cutoff=0.8)
    if close:
        return f"did you mean {close[0]}?"
    return f"{service} knows: {', '.join(sorted(known))}"


def _may_be_shown(kind: str) -> bool:
    """Whether the field is a number or a choice: texts and what validators see may be secret."""
    return kind.endswith("_parsing") or kind in _NO_TEXT


def parsed_file(settings: Settings, name: str, parse: Callable[[str], T]) -> T | None:
    """What `parse`, which may raise `ValueError`, makes of the file that setting `name` names.

    None when it names none. Raises `SettingsError`.
    """
    path: str | None = getattr(settings, name)
    if not path:
        return None
    try:
        return parse(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"SITS_{name.upper()}={path}: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(f"SITS_{name.upper()}={path}: {error}") from None


def _token_in(path: str) -> str:
    """Raises `ValueError`: what a validator may raise. Editors leave a newline at the end."""
    try:
        token = Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"its file {path} cannot be read: {type(error).__name__}") from None
    if not token:
        raise ValueError(f"its file {path} is empty")
    return token


def host_of(address: str) -> str:
    """`host` of `host:port` or `[v6]:port`."""
    return address.rpartition(":")[0].strip("[]")


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach `address` (host:port, or unix:path)."""
    return address.startswith("unix:") or host_of(address) in LOOPBACK


ANY_ADDRESS = ("0.0.0.0", "::", "")  # noqa: S104 - recognised, not bound to


def advertised(bind: str, settings: Settings) -> str:
    """host:port at which others reach what listens on `bind`."""
    port = bind.rpartition(":")[2]
    if settings.advertise_host is not None:
        return f"{settings.advertise_host}:{port}"
    return f"{node_name()}:{port}" if host_of(bind) in ANY_ADDRESS else bind


def node_name() -> str:
    return socket.gethostname()
