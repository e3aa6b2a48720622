"""Who may call the admin API: holders of the admin token, or this machine when there is none."""

import hmac
from collections.abc import Callable
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from sits_core.settings import LOOPBACK, is_loopback
from sits_dispatcher.admin_problems import AdminError
from sits_dispatcher.settings import DispatcherSettings

bearer = HTTPBearer(auto_error=False, description="SITS_ADMIN_TOKEN of the dispatcher")
Given = Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]


def guard(settings: DispatcherSettings) -> Callable[..., None]:
    """The dependency of every call that tells or changes something.

    With a token, only its holders pass. Without one, nobody does on a port that others can
    reach; on loopback only who asks for it by a loopback name, so that no website can point
    a name of its own here and read along (DNS rebinding).
    """
    token = settings.secret("admin_token")
    if token is not None:
        return _token_check(token)
    return _local_check if is_loopback(settings.dispatcher_admin_bind) else _closed


def own_page(request: Request) -> None:
    """The dependency of changing calls: a browser may make them for our own page only."""
    origin = request.headers.get("origin")
    site = request.headers.get("sec-fetch-site", "none")
    foreign = origin is not None and _netloc(origin) != request.headers.get("host", "")
    if foreign or site not in ("none", "same-origin"):
        raise AdminError(403, "this call came from another site", "use the page of the dispatcher")


def _token_check(token: str) -> Callable[..., None]:
    wanted = token.encode()

    def check(given: Given) -> None:
        offered = given.credentials.encode() if given is not None else b""
        if not hmac.compare_digest(offered, wanted):
            raise AdminError(
                401, "this call needs the admin token",
                "send 'Authorization: Bearer TOKEN' with the dispatcher's SITS_ADMIN_TOKEN",
            )  # fmt: skip

    return check


def _closed(given: Given) -> None:
    raise AdminError(
        401, "other machines reach this port and no admin token is set",
        "set SITS_ADMIN_TOKEN on the dispatcher, or bind SITS_DISPATCHER_ADMIN_BIND to 127.0.0.1",
    )  # fmt: skip


def _local_check(request: Request, given: Given) -> None:
    asked_for = request.headers.get("host", "")
    if _hostname(asked_for) not in LOOPBACK:
        raise AdminError(
            403, f"this port is asked for as '{asked_for}', which is no name of this machine alone",
            "use http://127.0.0.1 or http://localhost, or set SITS_ADMIN_TOKEN",
        )  # fmt: skip


def _hostname(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:  # not even an address
        return None


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None
