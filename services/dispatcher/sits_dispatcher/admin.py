"""HTTP beside gRPC, for people and scripts: strategy switch, state, health, metrics."""

import hmac
import threading
from collections.abc import Callable
from typing import Annotated, Any

import uvicorn
from fastapi import Depends, FastAPI, Header, HTTPException, Query, Response
from google.protobuf.json_format import MessageToDict
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from sits_core.errors import NotFound
from sits_core.settings import SettingsError, host_of, is_loopback
from sits_core.tls import ServerTls
from sits_dispatcher.mesh import Mesh
from sits_dispatcher.settings import DispatcherSettings
from sits_protos.v1.control_pb2 import GetStateResponse


def build(mesh: Mesh, settings: DispatcherSettings, registry: CollectorRegistry) -> FastAPI:
    """The application. Changing calls need the admin token unless bound to loopback."""
    app = FastAPI(title="SITS dispatcher", version="1", docs_url=None, redoc_url=None)
    allowed = Depends(admin_check(settings))

    @app.post("/v1/switch", dependencies=[allowed], summary="Switch the placement strategy")
    def switch(
        strategy: Annotated[str, Query(max_length=64)],
        model: Annotated[str, Query(max_length=256)] = "",
    ) -> dict[str, str]:
        try:
            previous = mesh.switch(strategy, model)
        except NotFound as error:
            raise HTTPException(404, error.message) from None
        return {"previous": previous, "current": strategy, "model": model}

    @app.get("/v1/state", dependencies=[allowed], summary="The mesh as this dispatcher sees it")
    def state() -> dict[str, Any]:
        response = GetStateResponse()
        mesh.describe(response)
        for model in response.models:  # what only protocol clients can read
            model.ClearField("metadata")
            model.ClearField("config")
            model.ClearField("labels")
        return MessageToDict(response, preserving_proto_field_name=True)

    @app.get("/healthz", summary="Alive")
    def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics", summary="Prometheus metrics", include_in_schema=False)
    def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return app


def admin_check(settings: DispatcherSettings) -> Callable[[str], None]:
    """The dependency that refuses callers without the admin credential."""
    token = settings.secret("admin_token")
    open_here = token is None and is_loopback(settings.dispatcher_admin_bind)

    def check(authorization: Annotated[str, Header()] = "") -> None:
        if open_here:
            return
        wanted = f"Bearer {token}" if token is not None else None
        if wanted is None or not hmac.compare_digest(authorization.encode(), wanted.encode()):
            raise HTTPException(401, "this call needs the admin token")

    return check


class AdminServer:
    """Serves the application on a thread of its own."""

    def __init__(self, app: FastAPI, bind: str, tls: ServerTls | None = None) -> None:
        self._bind = bind
        config = uvicorn.Config(
            app, host=host_of(bind), port=int(bind.rpartition(":")[2]), log_config=None,
            access_log=False, lifespan="off", timeout_graceful_shutdown=1,
            ssl_context_factory=(lambda _config, _default: tls.context()) if tls else None,
        )  # fmt: skip
        self._config, self._server = config, uvicorn.Server(config)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Raises `SettingsError` when the address cannot be bound."""
        try:
            socket = self._config.bind_socket()
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
