"""Reaching the services: addresses, tokens, and errors that say what to do next."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches

import grpc

from sits_core.errors import safe_text
from sits_core.rpc import channel, message_options, token_metadata
from sits_core.tls import client_tls_from

TIMEOUT_S = 5.0
MAX_MESSAGE_BYTES = (1 << 31) - 1


class CliError(Exception):
    """The command failed; the text says why and what to do next. Exit status 1."""


@dataclass(frozen=True, slots=True)
class Place:
    """A service to talk to. `option` is how the user names another address, `credential`
    says what to set when it is missing."""

    role: str
    address: str
    option: str = ""
    credential: str = "SITS_ADMIN_TOKEN or SITS_MESH_TOKEN to the token it was started with"


def tokens() -> tuple[tuple[str, str], ...]:
    """Call metadata from SITS_ADMIN_TOKEN, or SITS_MESH_TOKEN, or none."""
    return token_metadata(
        os.environ.get("SITS_ADMIN_TOKEN") or os.environ.get("SITS_MESH_TOKEN") or None
    )


def open_channel(address: str) -> grpc.Channel:
    """Over TLS when the SITS_TLS_ variables say so."""
    tls = client_tls_from(os.environ)
    return channel(address, tls, message_options(MAX_MESSAGE_BYTES))


@contextmanager
def reached(place: Place) -> Iterator[grpc.Channel]:
    """A channel for a few calls; a failed call becomes a `CliError`."""
    with open_channel(place.address) as opened:
        try:
            yield opened
        except grpc.RpcError as error:
            raise rpc_failed(error, place) from None


def rpc_failed(error: grpc.RpcError, place: Place, hint: str = "") -> CliError:
    """`hint` comes after what the service said."""
    code: grpc.StatusCode | None = getattr(error, "code", lambda: None)()
    details: str | None = getattr(error, "details", lambda: None)()
    return failed(code.name if code else "UNKNOWN", (details or "") + hint, place)


def failed(code: str, details: str, place: Place) -> CliError:
    """The error for a call that ended with gRPC status `code`."""
    said = safe_text(details).strip()
    if code == "UNAVAILABLE" and _unknown_host(details):
        another = f": name another one with {place.option}" if place.option else ""
        return CliError(
            f"the host of the {place.role} at {place.address} is not known here{another}"
        )
    if code == "UNAVAILABLE" and unreachable(details):
        return CliError(nobody_at(place))
    if code == "UNAUTHENTICATED":
        return CliError(
            f"the {place.role} at {place.address} does not know you: set {place.credential}"
        )
    if code == "DEADLINE_EXCEEDED":
        return CliError(
            f"the {place.role} at {place.address} did not answer in time: "
            "`sits status` shows whether it is ready, its log says more"
        )
    if code == "UNIMPLEMENTED" and "method" in said.lower():
        another = f": name it with {place.option}" if place.option else ""
        return CliError(f"what answers at {place.address} is no {place.role}{another}")
    return CliError(f"{place.role} at {place.address}: {said or code} ({code})")


def nobody_at(place: Place) -> str:
    """A mesh that is up may have lost it a moment ago: `sits up` starts it again."""
    another = f", or name another one with {place.option}" if place.option else ""
    return (
        f"no {place.role} at {place.address}: start a mesh with `sits up`, "
        f"or try again if one is up (it starts anew what ended){another}"
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint for a `name` that is none of those `known`; empty when none is like it."""
    names = {*known}
    near = [] if name in names else get_close_matches(name, names)
    return f": did you mean {' or '.join(near)}?" if near else ""


def unreachable(details: str) -> bool:
    """Whether a status UNAVAILABLE is gRPC's own: it found nobody who could answer."""
    text = details.lower()
    signs = ("failed to connect", "connection refused", "socket closed")
    return any(sign in text for sign in signs)


def _unknown_host(details: str) -> bool:
    """The words differ between versions of gRPC."""
    return "errors resolving" in details or "DNS resolution failed" in details
