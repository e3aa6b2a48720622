"""What the page shows is collected from whoever answers, once a second at most."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from sits_core.control import BaseControl
from sits_core.drain import Drain
from sits_core.rpc import Server
from sits_core.settings import Settings
from sits_core.testing import wait_until
from sits_core.tracing import TraceContext, Tracer
from sits_dispatcher import admin_models as api
from sits_dispatcher.dashboard import live as live_module
from sits_dispatcher.dashboard.live import Live
from sits_dispatcher.dashboard.peers import Peers
from sits_dispatcher.dashboard.traces import Traces
from sits_dispatcher.traffic import Traffic
from sits_protos.v1 import control_pb2 as pb
from sits_protos.v1.control_pb2_grpc import add_ControlServicer_to_server
from sits_protos.v1.link_pb2 import Hello, Role
from sits_scheduling.affinity import Place

S = 1_000_000_000
NOBODY = "127.0.0.1:1"
TRAFFIC = Traffic()


class FakeFront(BaseControl):
    """Serves the metrics that a front door has."""

    def __init__(self, service: str = "preprocess") -> None:
        self.registry, self.tracer = CollectorRegistry(), Tracer(service, 100, 1.0)
        super().__init__(Hello(id="front"), self.tracer, Drain(), self.registry)
        names = ("model", "tenant")
        self.requests = Counter("sits_requests", "", (*names, "outcome"), registry=self.registry)
        self.seconds = Histogram("sits_request_seconds", "", names, registry=self.registry)
        self.closed = Counter("sits_batch_closed", "", ["reason"], registry=self.registry)
        self.rows = Histogram("sits_batch_rows", "", registry=self.registry)
        self.queued = Gauge("sits_preprocess_queued", "", registry=self.registry)
        self.asked = 0
        self.may_answer = threading.Event()
        self.may_answer.set()

    def GetMetrics(
        self, request: pb.GetMetricsRequest, context: grpc.ServicerContext
    ) -> pb.GetMetricsResponse:
        self.asked += 1
        self.may_answer.wait(10)
        return super().GetMetrics(request, context)

    def serve_some(self, count: int, seconds: float = 0.01) -> None:
        for _ in range(count):
            self.requests.labels("m", "gold", "OK").inc()
            self.seconds.labels("m", "gold").observe(seconds)
            self.closed.labels("idle").inc()
            self.rows.observe(2)


Serve = Callable[[BaseControl], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:

        def start(control: BaseControl) -> str:
            server = Server("127.0.0.1:0", Settings())
            server.add(add_ControlServicer_to_server, control, "sits.v1.Control")
            stack.enter_context(server)
            return f"127.0.0.1:{server.port}"

        yield start


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Seconds that pass only when a test says so."""
    now = SimpleNamespace(s=1000.0)
    monkeypatch.setattr(live_module, "now_ns", lambda: int(now.s * S))
    monkeypatch.setattr(live_module, "time", SimpleNamespace(monotonic=lambda: now.s))
    return now


def state(*fronts: str) -> api.State:
    return api.State(
        version="1", started_unix_ms=0, strategy="fifo", strategies=["fifo"], model_strategies={},
        redis=api.Redis(configured=False, connected=False, age_s=None), topology_age_s=None,
        executors=[api.Executor(
            id="e", host="h", device="cpu:0", address="", transport="grpc", draining=False,
            batches_in_flight=3, rows_in_flight=9, batches_total=7, parallel=1, slots=4,
        )],
        fronts=[api.Front(id=at, host="h", address=at, transport="grpc") for at in fronts],
        models=[], governance=api.Governance(
            acts=True, level="normal", scale_factor=1, shed_tiers=[], signals=[], steps=[]
        ),
    )  # fmt: skip


def live(*fronts: str) -> Live:
    registry = CollectorRegistry()
    Gauge("sits_dispatcher_pending", "", registry=registry).set(5)
    dispatcher = SimpleNamespace(lock=threading.Lock(), traffic=TRAFFIC)
    mesh: Any = SimpleNamespace(snapshots=list, dispatcher=dispatcher)
    return Live(mesh, Peers(Settings()), registry, lambda: state(*fronts), {"gold": 50.0})


def look(at: Live) -> api.Live:
    return api.Live.model_validate_json(at.json(), strict=True)


def test_figures_are_those_of_all_front_doors(serve: Serve, clock: SimpleNamespace) -> None:
    one, two = FakeFront(), FakeFront()
    page = live(serve(one), serve(two))
    assert look(page).traffic.requests_per_s is None
    clock.s += 2
    one.serve_some(30)
    two.serve_some(10, seconds=0.2)
    one.queued.set(4)
    seen = look(page)
    assert seen.window_s == 2.0
    assert seen.traffic.outcomes_per_s == {"OK": 20.0}
    assert (seen.traffic.requests_per_s, seen.silent_fronts) == (20.0, [])
    assert [(r.reason, r.total, r.per_s) for r in seen.batching.reasons] == [("idle", 40, 20.0)]
    assert seen.batching.rows_per_batch == 2.0
    (gold,) = seen.tenants
    assert (gold.tenant, gold.requests_per_s, gold.in_slo) == ("gold", 20.0, 0.75)
    assert seen.queues == api.Queues(
        front_requests=4, pending_batches=5, in_flight_batches=3, in_flight_rows=9
    )


def test_bytes_a_second_are_told_by_the_way_they_take(clock: SimpleNamespace) -> None:
    TRAFFIC.moved(Place("h", 1), "e", 500)
    page = live()
    look(page)
    clock.s += 2
    TRAFFIC.moved(Place("h", 1), "e", 3_000)
    TRAFFIC.moved(Place("other"), "e", 100)
    found = {(m.host, m.numa_node, m.executor): m.bytes_per_s for m in look(page).moved}
    assert found == {("h", 1, "e"): 1_500.0, ("other", None, "e"): 50.0}


def test_what_an_executor_moved_is_forgotten_with_it() -> None:
    traffic = Traffic()
    traffic.moved(Place("h"), "e", 1)
    traffic.moved(Place("h"), "f", 2)
    traffic.forget("e")
    assert traffic.totals() == {(Place("h"), "f"): 2}


def test_however_many_look_the_mesh_is_asked_once_a_second(
    serve: Serve, clock: SimpleNamespace
) -> None:
    front = FakeFront()
    page = live(serve(front))
    assert len({page.json() for _ in range(50)}) == 1
    clock.s += 0.99
    page.json()
    assert front.asked == 1
    clock.s += 0.01
    page.json()
    assert front.asked == 2


def test_a_front_door_that_does_not_answer_is_named_and_others_are_shown(
    serve: Serve, clock: SimpleNamespace
) -> None:
    front = FakeFront()
    page = live(serve(front), NOBODY)
    look(page)
    clock.s += 1
    front.serve_some(5)
    seen = look(page)
    assert seen.silent_fronts == [NOBODY]
    assert seen.traffic.requests_per_s == 5.0


def test_without_an_answer_nothing_is_claimed(clock: SimpleNamespace) -> None:
    seen = look(live(NOBODY))
    assert (seen.queues.front_requests, seen.traffic.requests_per_s) == (None, None)


def test_who_looks_while_others_collect_gets_what_is_there(
    serve: Serve, clock: SimpleNamespace
) -> None:
    front = FakeFront()
    page = live(serve(front))
    before = page.json()
    clock.s += 1
    front.may_answer.clear()
    collecting = threading.Thread(target=page.json)
    collecting.start()
    wait_until(lambda: front.asked == 2, 10, "the collection under way")
    assert page.json() is before
    front.may_answer.set()
    collecting.join(10)
    assert page.json() is not before


# traces


def traced(*fronts: str) -> Traces:
    """A dispatcher with one span, linked to these."""
    tracer = Tracer("dispatcher", 100, 1.0)
    tracer.record("dispatcher.place", ROOT, 3_000_000, 5_000_000, {"strategy": "fifo"})
    peers = [
        pb.PeerState(hello=Hello(role=Role.ROLE_PREPROCESS, control_address=at)) for at in fronts
    ]
    mesh: Any = SimpleNamespace(
        dispatcher=SimpleNamespace(tracer=tracer),
        fronts=SimpleNamespace(hellos=lambda: [(None, peer.hello, None) for peer in peers]),
        describe=lambda answer: answer.peers.extend(peers),
    )
    return Traces(mesh, Peers(Settings()))


ROOT = TraceContext(b"t" * 16, b"rootspan")


def front_with_requests(count: int = 1) -> FakeFront:
    front = FakeFront()
    for number in range(count):
        trace = TraceContext(bytes([number]) * 15 + b"x", bytes(8)) if number else ROOT
        front.tracer.record(
            "preprocess.request", TraceContext(trace.trace_id, bytes(8)), number * S,
            number * S + 10_000_000, {"model": "m", "tenant": "gold", "rows": 4},
            span_id=trace.span_id,
        )  # fmt: skip
    return front


def test_recent_requests_are_listed_newest_first(serve: Serve) -> None:
    found = traced(serve(front_with_requests(5)), NOBODY).recent(3)
    assert [request.ended_unix_ms for request in found.requests] == [4010, 3010, 2010]
    assert found.requests[0].model_dump(exclude={"trace_id", "ended_unix_ms"}) == {
        "total_ms": 10.0, "model": "m", "tenant": "gold", "rows": 4, "error": "",
    }  # fmt: skip
    assert found.silent == [NOBODY]


def test_a_trace_joins_the_spans_of_all_services(serve: Serve) -> None:
    found = traced(serve(front_with_requests())).one(ROOT.trace_id)
    assert found is not None
    stages = [(stage.service, stage.name, stage.kind) for stage in found.stages]
    assert stages == [
        ("preprocess", "preprocess.request", "stage"),
        ("preprocess", "→ dispatcher", "travel"),
        ("dispatcher", "dispatcher.place", "stage"),
        ("dispatcher", "→ preprocess", "travel"),
    ]
    assert (found.total_ms, found.stage_ms, found.travel_ms) == (10.0, 2.0, 8.0)
    assert found.stages[2].attributes == {"strategy": "fifo"}


def test_a_trace_that_nobody_remembers_is_none(serve: Serve) -> None:
    assert traced(serve(front_with_requests())).one(b"?" * 16) is None
