"""When the admin port can be reached."""

import socket
import threading

import pytest
import uvicorn
from fastapi import FastAPI

from sits_core.testing import free_port
from sits_dispatcher.admin_server import AdminServer


def test_it_can_be_reached_once_started_however_long_the_rest_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The dispatcher says that it is ready then. Who comes early waits for an answer."""
    tried = threading.Event()

    def run(_server: uvicorn.Server, sockets: list[socket.socket]) -> None:
        tried.wait()
        sockets[0].close()

    monkeypatch.setattr(uvicorn.Server, "run", run)
    port = free_port()
    server = AdminServer(FastAPI(), f"127.0.0.1:{port}")
    server.start()
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    finally:
        tried.set()
        server.stop()
