"""An admin port without the rest of the dispatcher, and the dispatcher's time."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import httpx
import pytest
from fastapi import FastAPI

from sits_cli.ports import free_ports
from sits_core.clock import now_ns
from sits_core.metrics import ProcessRegistry
from sits_core.settings import load
from sits_core.testing import FakeClock
from sits_core.tracing import Tracer
from sits_dispatcher.admin import build
from sits_dispatcher.admin_server import AdminServer
from sits_dispatcher.app import build_mesh, hello
from sits_dispatcher.mesh import Mesh
from sits_dispatcher.settings import DispatcherSettings

Serve = Callable[[FastAPI], httpx.Client]
Admin = Callable[..., httpx.Client]


def settings(**values: object) -> DispatcherSettings:
    return load(DispatcherSettings, "dispatcher", {}, **values)


def mesh_of(values: DispatcherSettings) -> Mesh:
    """A dispatcher that nobody is linked to."""
    tracer = Tracer("dispatcher", 100, 1.0)
    return build_mesh(values, hello(values), tracer, ProcessRegistry())


@pytest.fixture(scope="session")
def serve() -> Iterator[Serve]:
    """`serve(app)` → a client of it, over real HTTP."""
    with ExitStack() as stack:

        def start(app: FastAPI) -> httpx.Client:
            bind = f"127.0.0.1:{free_ports(1)[0]}"
            server = AdminServer(app, bind)
            server.start()
            stack.callback(server.stop)
            client = httpx.Client(base_url=f"http://{bind}", timeout=20)
            stack.callback(client.close)
            return client

        yield start


@pytest.fixture(scope="session")
def admin(serve: Serve) -> Admin:
    """`admin(admin_token="t")` → a client of the admin port of a dispatcher with these
    settings, the same for the same ones; `change` is called with its mesh first."""

    @cache
    def start(change: Callable[[Mesh], None] = lambda _: None, **values: object) -> httpx.Client:
        chosen = settings(**values)
        mesh = mesh_of(chosen)
        change(mesh)
        return serve(build(mesh, chosen, ProcessRegistry()))

    return start


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """The dispatcher's time, moved by hand."""
    made = FakeClock(now_ns())
    for module in ("dispatcher", "mail", "pending", "job"):
        monkeypatch.setattr(f"sits_dispatcher.{module}.now_ns", made)
    return made
