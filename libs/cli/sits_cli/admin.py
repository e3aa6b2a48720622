"""The admin port of a dispatcher, over HTTP, with errors that say what to do."""

import json
import os
import socket
import ssl
from http.client import HTTPConnection, HTTPException
from typing import Any

from sits_cli.client import TIMEOUT_S, CliError, Place, nobody_at, tokens
from sits_core.errors import safe_text
from sits_core.settings import host_of
from sits_core.tls import ClientTls, client_tls_from

Json = Any
"""What the dispatcher answers; its /openapi.json describes it."""


def get(place: Place, path: str) -> Json:
    """The answer of a GET. Raises `CliError`."""
    connection = HTTPConnection(host_of(place.address), _port(place), timeout=TIMEOUT_S)
    try:
        connection.sock = _connected(place)
        connection.request("GET", path, headers=dict(tokens()))
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, UnicodeError, HTTPException) as error:
        raise CliError(f"{nobody_at(place)} ({safe_text(str(error))})") from None
    finally:
        connection.close()
    return _parsed(place, answer.status, body)


def _parsed(place: Place, status: int, body: bytes) -> Json:
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    if status == 200 and answer is not None:
        return answer
    if isinstance(answer, dict) and "error" in answer:
        error, do = safe_text(str(answer["error"])), safe_text(str(answer.get("do", "")))
        raise CliError(f"{place.role} at {place.address}: {error}: {do}")
    raise CliError(
        f"what answers at {place.address} is no {place.role} (HTTP status {status}): "
        f"name its admin port with {place.option}"
    )


def _port(place: Place) -> int:
    return int(place.address.rpartition(":")[2])


def _connected(place: Place) -> socket.socket:
    """Over TLS when the SITS_TLS_ variables say so. Raises `OSError`, of which ssl's is one."""
    host = host_of(place.address)
    plain = socket.create_connection((host, _port(place)), TIMEOUT_S)
    tls = client_tls_from(os.environ)
    if tls is None:
        return plain
    return _context(tls).wrap_socket(plain, server_hostname=tls.server_name or host)


def _context(tls: ClientTls) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.files.ca)
    if tls.files.cert is not None:
        context.load_cert_chain(tls.files.cert, tls.files.key, password="")
    return context
