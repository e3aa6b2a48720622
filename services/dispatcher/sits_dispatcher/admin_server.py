"""Serves the admin application."""

import threading

import uvicorn
from fastapi import FastAPI

from sits_core.settings import SettingsError, host_of
from sits_core.tls import ServerTls


class AdminServer:
    """Serves the application on a thread of its own."""

    def __init__(self, app: FastAPI, bind: str, tls: ServerTls | None = None) -> None:
        self._bind = bind
        config = uvicorn.Config(
            app, host=host_of(bind), port=int(bind.rpartition(":")[2]), log_config=None,
            access_log=False, server_header=False, lifespan="off", timeout_graceful_shutdown=1,
            ssl_context_factory=(lambda _config, _default: tls.context()) if tls else None,
        )  # fmt: skip
        self._config, self._server = config, uvicorn.Server(config)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """From its return on the port can be reached. Raises `SettingsError` when the address
        cannot be bound."""
        try:
            socket = self._config.bind_socket()
            socket.listen(self._config.backlog)  # uvicorn does when its thread gets to it
        except SystemExit:  # how uvicorn reports a taken port
            raise SettingsError(f"cannot listen on {self._bind}: is it in use?") from None
        self._thread = threading.Thread(
            target=self._server.run, args=([socket],), name="admin http", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(3.0)
