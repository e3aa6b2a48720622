"""HTTP beside gRPC, for people and scripts: the page, state, figures, strategy switch, metrics."""

from functools import partial
from importlib.metadata import version
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Path, Query, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from sits_core.clock import now_ns
from sits_core.errors import NotFound
from sits_dispatcher import admin_models as api
from sits_dispatcher import admin_problems
from sits_dispatcher.admin_access import guard, own_page
from sits_dispatcher.admin_problems import GUARDED, INVALID, AdminError, answers
from sits_dispatcher.dashboard import mesh_view, page
from sits_dispatcher.dashboard.live import Live
from sits_dispatcher.dashboard.peers import Peers
from sits_dispatcher.dashboard.tenants import objectives
from sits_dispatcher.dashboard.traces import Traces
from sits_dispatcher.mesh import Mesh
from sits_dispatcher.settings import DispatcherSettings

DESCRIPTION = """Operate a running mesh. Calls below /v1 need the admin token as a Bearer token
when one is set, and always on a port that other machines reach. Every failure is a Problem."""


def build(mesh: Mesh, settings: DispatcherSettings, registry: CollectorRegistry) -> FastAPI:
    """The application. Nothing below /v1 is open unless it is bound to loopback."""
    own_version = version("sits-dispatcher")
    app = FastAPI(
        title="SITS dispatcher", version=own_version, description=DESCRIPTION,
        docs_url=None, redoc_url=None, generate_unique_id_function=lambda route: route.name,
    )  # fmt: skip
    state = partial(mesh_view.state, mesh, own_version, now_ns())
    slo_ms = objectives(settings.dispatcher_slo_ms)
    live = Live(mesh, Peers(settings), registry, state, slo_ms)
    guarded = [Depends(guard(settings))]
    for router in (
        mesh_calls(mesh, state),
        figure_calls(live, Traces(mesh, Peers(settings))),
    ):
        app.include_router(router, prefix="/v1", dependencies=guarded, responses=GUARDED)
    app.include_router(probes(registry))
    page.install(app)
    admin_problems.install(app)
    return app


def mesh_calls(mesh: Mesh, state: "partial[api.State]") -> APIRouter:
    """What this dispatcher knows, and what it can be told."""
    calls = APIRouter(tags=["mesh"])

    @calls.get("/state", summary="The mesh as this dispatcher sees it")
    def get_state() -> api.State:
        return state()

    @calls.get("/topology", summary="Devices, links and affinity weights of each host")
    def get_topology() -> api.Topology:
        return mesh_view.topology(mesh.snapshots())

    @calls.post(
        "/switch",
        summary="Switch the placement strategy",
        dependencies=[Depends(own_page)],
        responses={**INVALID, **answers(s404="No such strategy")},
    )
    def switch(
        strategy: Annotated[str, Query(max_length=64, description="one of /v1/state's strategies")],
        model: Annotated[str, Query(max_length=256, description="empty: all models")] = "",
    ) -> api.Switched:
        try:
            previous = mesh.switch(strategy, model)
        except NotFound as error:
            raise AdminError(404, error.message, "name one of these") from None
        return api.Switched(previous=previous, current=strategy, model=model)

    return calls


def figure_calls(live: Live, traces: Traces) -> APIRouter:
    """What is collected from the whole mesh when somebody asks."""
    calls = APIRouter(tags=["figures"])

    @calls.get("/live", summary="All that moves; collected once a second at most")
    def get_live() -> api.Live:
        return Response(live.json(), media_type="application/json")  # type: ignore[return-value]  # it is an api.Live, written once for all who ask

    @calls.get("/traces", summary="Recent requests that were traced", responses=INVALID)
    def get_traces(limit: Annotated[int, Query(ge=1, le=200)] = 20) -> api.Traces:
        return traces.recent(limit)

    @calls.get(
        "/traces/{trace_id}",
        summary="The stages of one request",
        responses={**INVALID, **answers(s404="Nobody remembers it")},
    )
    def get_trace(trace_id: Annotated[str, Path(pattern="^[0-9a-f]{32}$")]) -> api.Trace:
        found = traces.one(bytes.fromhex(trace_id))
        if found is None:
            raise AdminError(
                404, f"no service remembers trace {trace_id}",
                "take one of /v1/traces; `sits infer MODEL --trace` makes one",
            )  # fmt: skip
        return found

    return calls


def probes(registry: CollectorRegistry) -> APIRouter:
    """Open to everybody who reaches the port."""
    calls = APIRouter()

    # On the event loop: it answers even while all threads collect.
    @calls.get("/healthz", summary="Alive")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @calls.get("/metrics", summary="Prometheus metrics", include_in_schema=False)
    def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return calls
