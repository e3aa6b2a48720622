"""What every service answers about itself."""

from collections.abc import Iterator

import grpc
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Metric
from prometheus_client.core import GaugeMetricFamily

from sits_core.control import BaseControl
from sits_core.drain import Drain
from sits_core.errors import Unimplemented
from sits_core.rpc import Server, open_channel
from sits_core.settings import Settings
from sits_core.tracing import TraceContext, Tracer
from sits_protos.v1 import control_pb2 as pb
from sits_protos.v1.control_pb2_grpc import ControlStub, add_ControlServicer_to_server
from sits_protos.v1.link_pb2 import Hello, Role

HELLO = Hello(role=Role.ROLE_EXECUTOR, id="executor-1")


class Undescribed:
    """A collector that does not say beforehand what it has."""

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("sits_late", "Late", value=5)


def registry() -> CollectorRegistry:
    made = CollectorRegistry()
    Counter("sits_seen", "Seen", ["kind"], registry=made).labels("a").inc(3)
    Gauge("sits_open", "Open", registry=made).set(2)
    made.register(Undescribed())
    return made


class Mesh:
    def __init__(self, stub: ControlStub, tracer: Tracer, drain: Drain) -> None:
        self.stub, self.tracer, self.drain = stub, tracer, drain


@pytest.fixture
def mesh() -> Iterator[Mesh]:
    tracer, drain = Tracer("executor", 100, 1.0), Drain()
    server = Server("127.0.0.1:0", Settings())
    control = BaseControl(HELLO, tracer, drain, registry())
    server.add(add_ControlServicer_to_server, control, "sits.v1.Control")
    with server, open_channel(f"127.0.0.1:{server.port}", Settings()) as channel:
        yield Mesh(ControlStub(channel), tracer, drain)


def test_state_says_who_it_is_and_that_it_never_saw_a_topology(mesh: Mesh) -> None:
    state = mesh.stub.GetState(pb.GetStateRequest(), timeout=10)
    assert (state.self, state.ready, state.topology_age_s) == (HELLO, True, -1)
    assert state.started_unix_ns > 0


def test_drain_is_passed_on_and_seen_in_the_state(mesh: Mesh) -> None:
    mesh.stub.Drain(pb.DrainRequest(), timeout=10)
    assert mesh.drain.is_set()
    assert not mesh.stub.GetState(pb.GetStateRequest(), timeout=10).ready
    assert mesh.drain.grace_s(10.0) == 10.0


def test_the_first_who_drains_says_how_long_accepted_work_may_take(mesh: Mesh) -> None:
    mesh.stub.Drain(pb.DrainRequest(grace_s=3.5), timeout=10)
    mesh.stub.Drain(pb.DrainRequest(grace_s=60), timeout=10)
    assert mesh.drain.grace_s(10.0) == 3.5


@pytest.mark.parametrize("grace_s", [-1.0, float("nan"), float("inf")])
def test_a_grace_that_is_no_time_is_refused_and_drains_nothing(mesh: Mesh, grace_s: float) -> None:
    with pytest.raises(grpc.RpcError, match="grace_s") as caught:
        mesh.stub.Drain(pb.DrainRequest(grace_s=grace_s), timeout=10)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert not mesh.drain.is_set()


def test_spans_come_with_all_they_hold(mesh: Mesh) -> None:
    trace, linked = mesh.tracer.new_trace(), TraceContext(b"l" * 16, b"s" * 8)
    own = mesh.tracer.record(
        "executor.infer", trace, 1, 5, {"rows": 4, "model": "m"}, links=(linked,), error="boom"
    )
    answer = mesh.stub.GetSpans(pb.GetSpansRequest(trace_id=trace.trace_id), timeout=10)
    (span,) = answer.spans
    assert answer.service == "executor"
    assert (span.trace_id, span.span_id, span.parent_id) == (*own, bytes(8))
    assert (span.name, span.start_unix_ns, span.end_unix_ns) == ("executor.infer", 1, 5)
    assert dict(span.attributes) == {"rows": "4", "model": "m"}
    assert [(link.trace_id, link.span_id) for link in span.links] == [linked]
    assert span.error == "boom"


def test_spans_are_those_of_one_trace_or_the_newest(mesh: Mesh) -> None:
    traces = [mesh.tracer.new_trace() for _ in range(5)]
    for number, trace in enumerate(traces):
        mesh.tracer.record(f"span {number}", trace, 1, 2, {})

    def names(**request: object) -> list[str]:
        answer = mesh.stub.GetSpans(pb.GetSpansRequest(**request), timeout=10)
        return [span.name for span in answer.spans]

    assert names(trace_id=traces[2].trace_id) == ["span 2"]
    assert names(limit=2) == ["span 3", "span 4"]
    assert len(names()) == 5
    assert names(trace_id=b"unknown") == []


def test_calls_a_role_has_not_are_unimplemented(mesh: Mesh) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        mesh.stub.SetStrategy(pb.SetStrategyRequest(strategy="x"), timeout=10)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def samples(mesh: Mesh, *names: str) -> dict[str, tuple[dict[str, str], float]]:
    answer = mesh.stub.GetMetrics(pb.GetMetricsRequest(names=names), timeout=10)
    return {sample.name: (dict(sample.labels), sample.value) for sample in answer.samples}


def test_metrics_are_those_that_were_asked_for(mesh: Mesh) -> None:
    assert samples(mesh, "sits_seen_total", "sits_unheard_of") == {
        "sits_seen_total": ({"kind": "a"}, 3.0)
    }


def test_asking_for_no_metric_by_name_gives_all(mesh: Mesh) -> None:
    assert {"sits_seen_total", "sits_open", "sits_late"} <= samples(mesh).keys()


def test_metrics_of_any_collector_can_be_asked_for(mesh: Mesh) -> None:
    assert samples(mesh, "sits_late") == {"sits_late": ({}, 5.0)}


def test_a_service_without_metrics_says_so() -> None:
    control = BaseControl(HELLO, Tracer("executor", 1, 0.0), Drain())
    with pytest.raises(Unimplemented, match="GetMetrics"):
        control.GetMetrics(pb.GetMetricsRequest(), None)  # type: ignore[arg-type]  # not looked at
