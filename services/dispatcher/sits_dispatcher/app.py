"""The dispatcher as a process: built of its parts by hand, run until told to stop, drained."""

import random
from collections.abc import Callable
from importlib.metadata import version

from sits_channel.link import link_handler
from sits_channel.pool_reader import PoolReader
from sits_channel.ring_files import open_rings
from sits_core.drain import Drain, finish
from sits_core.identity import host_id, new_process_id
from sits_core.keepers import Follower, Periodic
from sits_core.metrics import ProcessRegistry
from sits_core.processors import PythonThreads
from sits_core.redis_registry import connect
from sits_core.rpc import Server, open_channel, require_token_off_loopback, token_metadata
from sits_core.settings import SettingsError, advertised, parsed_file
from sits_core.telemetry import open_tracer
from sits_core.tls import server_tls
from sits_core.tracing import Tracer
from sits_dispatcher.admin import build
from sits_dispatcher.admin_server import AdminServer
from sits_dispatcher.control import Control, ExecutorControls
from sits_dispatcher.dispatcher import Dispatcher
from sits_dispatcher.executors import Executors
from sits_dispatcher.fronts import Fronts
from sits_dispatcher.governance import Governance
from sits_dispatcher.mesh import Mesh
from sits_dispatcher.metrics import Metrics
from sits_dispatcher.placer import Placer
from sits_dispatcher.settings import DispatcherSettings
from sits_dispatcher.weights import Weights
from sits_protos.v1.control_pb2_grpc import add_ControlServicer_to_server
from sits_protos.v1.link_pb2 import Hello, LinkMessage, Role
from sits_scheduling.candidates import ExecutorTable
from sits_scheduling.plugins import PluginError, load_strategies
from sits_scheduling.strategies import Factory
from sits_scheduling.tenant_file import parse_tenants, standard_tenants

TICK_S = 0.05
HEDGE_TICK_S = 0.005


def serve(settings: DispatcherSettings, stop: Drain) -> None:
    require_token_off_loopback(settings.dispatcher_bind, settings, "SITS_DISPATCHER_BIND")
    own, registry = hello(settings), ProcessRegistry()
    with open_tracer("dispatcher", settings, registry, own.id) as tracer:
        serve_with(settings, stop, own, build_mesh(settings, own, tracer, registry), registry)


def serve_with(
    settings: DispatcherSettings,
    stop: Drain,
    own: Hello,
    mesh: Mesh,
    registry: ProcessRegistry,
) -> None:
    follower = Follower(mesh.registry, mesh.poll_registry)
    mesh.redis_age_s = lambda: follower.age_s
    tickers = [Periodic(mesh.tick, TICK_S, "dispatcher ticker")]
    if mesh.dispatcher.hedges.on:
        tickers.append(Periodic(mesh.hedge, HEDGE_TICK_S, "dispatcher hedges"))
    app, tls = build(mesh, settings, registry), server_tls(settings)
    admin = AdminServer(app, settings.dispatcher_admin_bind, tls)
    executors = ExecutorControls(mesh, settings)
    control = Control(own, mesh.dispatcher.tracer, stop, mesh, executors, registry)
    cpus = settings.dispatcher_python_cpus
    python = PythonThreads(cpus, "SITS_DISPATCHER_PYTHON_CPUS", last_first=True)
    admin.start()
    with build_server(settings, mesh, control, own) as server:
        mesh.executors.follow(mesh.static)
        follower.start()
        for ticker in tickers:
            ticker.start()
        python.start()
        server.set_ready(True)
        stop.wait()
        server.set_ready(False)
        mesh.leave()
        finish(mesh.dispatcher.idle, stop.grace_s(settings.drain_grace_s))
        follower.stop()
        mesh.executors.stop()
    python.stop()
    for ticker in tickers:
        ticker.stop()
    admin.stop()


def build_mesh(
    settings: DispatcherSettings, own: Hello, tracer: Tracer, registry: ProcessRegistry
) -> Mesh:
    table, weights, metrics = ExecutorTable(), Weights(), Metrics(registry)
    rng = random.Random()  # noqa: S311 - ties only
    placer = Placer(table, settings.dispatcher_strategy, rng, custom_strategies())
    reader = PoolReader(settings.shm_dir)
    tenants = parsed_file(settings, "tenants_file", parse_tenants) or standard_tenants()
    dispatcher = Dispatcher(settings, table, placer, weights, reader, tracer, metrics, tenants)
    executors = Executors(
        dispatcher,
        lambda address: open_channel(address, settings),
        token_metadata(settings.secret("mesh_token")),
        greeting(own),
        settings.shm_dir,
        open_rings(settings, own.id),
    )
    static = [a.strip() for a in settings.dispatcher_executors.split(",") if a.strip()]
    shared, fronts = connect(settings, registry), Fronts(dispatcher, settings.shm_dir)
    period_s, acts = settings.dispatcher_governance_period_s, settings.dispatcher_governance
    governance = Governance(dispatcher, weights, metrics, period_s, acts=acts)
    return Mesh(dispatcher, executors, fronts, weights, shared, metrics, static, governance)


def custom_strategies() -> dict[str, Factory]:
    """Those that installed packages bring. Raises `SettingsError` for one that cannot be used."""
    try:
        return load_strategies()
    except PluginError as error:
        raise SettingsError(str(error)) from None


def build_server(settings: DispatcherSettings, mesh: Mesh, control: Control, own: Hello) -> Server:
    tokens = [token for name in ("mesh_token", "admin_token") if (token := settings.secret(name))]
    server = Server(settings.dispatcher_bind, settings, tokens=tokens)
    dispatch = link_handler(
        "sits.v1.Dispatch", mesh.fronts, greeting(own), open_rings(settings, own.id)
    )
    server.add_handler(dispatch, "sits.v1.Dispatch")
    server.add(add_ControlServicer_to_server, control, "sits.v1.Control")
    return server


def greeting(own: Hello) -> Callable[[], bytes]:
    """Makes the first message of a link."""
    return LinkMessage(hello=own).SerializeToString


def hello(settings: DispatcherSettings) -> Hello:
    return Hello(
        role=Role.ROLE_DISPATCHER,
        id=new_process_id("dispatcher"),
        host=host_id(),
        numa_node=-1,
        software_version=version("sits-dispatcher"),
        control_address=advertised(settings.dispatcher_bind, settings),
    )
