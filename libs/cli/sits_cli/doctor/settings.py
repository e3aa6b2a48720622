"""The SITS_ variables: unknown, wrong, and such as contradict each other."""

import importlib
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec

from sits_cli.doctor.finding import Environ, Finding, good, note, problem, warning
from sits_cli.ports import DEFAULTS
from sits_core.rpc import require_token_off_loopback
from sits_core.settings import SERVICES, Settings, SettingsError, is_loopback, load
from sits_core.tls import server_tls

INTERNAL = ("SITS_PREPROCESS_CONTROL_BIND", "SITS_DISPATCHER_BIND", "SITS_EXECUTOR_BIND",
            "SITS_TOPOLOGY_BIND")  # fmt: skip
"""Ports that carry the mesh's own traffic."""
ADMIN, FRONT = "SITS_DISPATCHER_ADMIN_BIND", "SITS_PREPROCESS_BIND"
DISPATCHERS = "SITS_PREPROCESS_DISPATCHERS"
KEYS = "SITS_PREPROCESS_API_KEYS_FILE"
DO = "set it right, or unset it"


def settings(environ: Environ) -> Iterator[Finding]:
    """Everything else is only looked at when each service can read its own."""
    found = wrong(environ)
    if found:
        yield from found
        return
    count = sum(name.startswith("SITS_") for name in environ)
    yield good("settings", f"{count} SITS_ variables set, all known" if count else "all defaults")
    yield from _contradictions(environ)
    yield from _open_ports(environ)


def wrong(environ: Environ) -> list[Finding]:
    """What services cannot read, each thing once."""
    found: dict[str, Finding] = {}
    for service in SERVICES:
        if (error := _error(service, environ)) is not None:
            found.setdefault(error, problem("settings", f"{service}: {error}", DO))
    return [*found.values()]


def _error(service: str, environ: Environ) -> str | None:
    """None when `service` is content, or not installed here."""
    # By name: the command belongs to no service, and works without any of them.
    if find_spec(f"sits_{service}") is None:
        return None
    classes = vars(importlib.import_module(f"sits_{service}.settings")).values()
    own = next(
        c for c in classes if isinstance(c, type) and issubclass(c, Settings) and c is not Settings
    )
    try:
        server_tls(load(own, service, dict(environ)))
    except SettingsError as error:
        return str(error)
    return None


def _contradictions(environ: Environ) -> Iterator[Finding]:
    binds = {name: environ.get(name) or default for name, default in DEFAULTS.items()}
    for address, times in Counter(binds.values()).items():
        if times > 1:
            names = " and ".join(name for name, bind in binds.items() if bind == address)
            yield problem("settings", f"{names} are both {address}", "give each an address")
    asked, listening = environ.get(DISPATCHERS), binds["SITS_DISPATCHER_BIND"]
    asked_for = asked or DEFAULTS["SITS_DISPATCHER_BIND"]
    if is_loopback(listening) and is_loopback(asked_for) and asked_for != listening:
        yield warning(
            "settings",
            f"the front door looks for a dispatcher at {asked_for}, and one listens on {listening}",
            f"set {DISPATCHERS}={listening} (`sits up` does so by itself)",
        )


def _open_ports(environ: Environ) -> Iterator[Finding]:
    shared = load(Settings, "cli", {k: v for k, v in environ.items() if _is_shared(k)})
    for name in INTERNAL:
        try:
            require_token_off_loopback(environ.get(name) or DEFAULTS[name], shared, name)
        except SettingsError as error:
            yield problem("settings", str(error), "do one of these")
    if not is_loopback(environ.get(ADMIN) or DEFAULTS[ADMIN]) and shared.admin_token is None:
        yield warning(
            "settings", f"{ADMIN} can be reached from other machines and is closed to all of them",
            "set SITS_ADMIN_TOKEN, or bind it to 127.0.0.1",
        )  # fmt: skip
    if not is_loopback(environ.get(FRONT) or DEFAULTS[FRONT]) and not environ.get(KEYS):
        yield note("settings", "whoever reaches the front door may use it",
                   f"{KEYS} names a file with API keys")  # fmt: skip


def _is_shared(name: str) -> bool:
    return name.removeprefix("SITS_").lower() in Settings.model_fields
