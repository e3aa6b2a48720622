"""Every service is restarted, one after the other, under load: no request fails."""

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from sits_cli import ports
from sits_cli.mesh import Mesh
from sits_cli.testing_load import Load, StreamLoad
from sits_cli.testing_mesh import log_lines, plan, running, whole
from sits_core.testing import wait_until
from sits_protos.v1.control_pb2 import DrainRequest, GetStateRequest, GetStateResponse
from sits_protos.v1.control_pb2_grpc import ControlStub
from sits_protos.v1.link_pb2 import ROLE_EXECUTOR, ROLE_PREPROCESS

pytestmark = pytest.mark.mesh

STREAMS = 10
BACK_S = 30
MORE = 20
"""Requests that are answered before the next one is restarted."""


@pytest.fixture(scope="module")
def doubled(few_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """Two of each service that requests pass, as the chart has them."""
    own, other = plan(few_models, tmp_path_factory.mktemp("rolling")), ports.free(0)
    both = f"{own.addresses.dispatcher},{other.dispatcher}"
    settings = {"SITS_PREPROCESS_DISPATCHERS": both, "SITS_PREPROCESS_DRAIN_DELAY_S": "1"}
    second = {
        "dispatcher-1": {
            "SITS_DISPATCHER_BIND": other.dispatcher,
            "SITS_DISPATCHER_ADMIN_BIND": other.admin,
        },
        "preprocess-1": {
            "SITS_PREPROCESS_BIND": other.front,
            "SITS_PREPROCESS_METRICS_BIND": other.front_metrics,
            "SITS_PREPROCESS_CONTROL_BIND": other.front_control,
        },
    }
    doubled = replace(own, more=second, service_env={"preprocess": settings})
    with running(doubled, "brief") as mesh:
        wait_until(lambda: all_linked(mesh), BACK_S, "all linked")
        yield mesh


def control_of(mesh: Mesh, service: str) -> str:
    """Where `service` serves Control."""
    book, more = mesh.addresses, mesh.plan.more
    return {
        "topology": book.topology,
        "executor-1": book.executors[1][0],
        "dispatcher": book.dispatcher,
        "dispatcher-1": more["dispatcher-1"]["SITS_DISPATCHER_BIND"],
        "preprocess-1": more["preprocess-1"]["SITS_PREPROCESS_CONTROL_BIND"],
    }[service]


def state_at(address: str) -> GetStateResponse:
    with grpc.insecure_channel(address) as channel:
        return ControlStub(channel).GetState(GetStateRequest(), timeout=5)


def all_linked(mesh: Mesh) -> bool:
    """Every dispatcher has both executors and both front doors."""
    for dispatcher in ("dispatcher", "dispatcher-1"):
        peers = state_at(control_of(mesh, dispatcher)).peers
        roles = Counter(peer.hello.role for peer in peers if not peer.hello.draining)
        if roles[ROLE_EXECUTOR] != 2 or roles[ROLE_PREPROCESS] != 2:
            return False
    return True


def by_signal(mesh: Mesh, service: str) -> None:
    mesh.kill(service, signal.SIGTERM)


def by_control(mesh: Mesh, service: str) -> None:
    with grpc.insecure_channel(control_of(mesh, service)) as channel:
        ControlStub(channel).Drain(DrainRequest(grace_s=5), timeout=5)


def restart(mesh: Mesh, service: str, drain: Callable[[Mesh, str], None]) -> None:
    """It ends in order, and comes back."""
    before, ended = mesh.pid(service), len(log_lines(mesh, service, "process.stopped"))
    drain(mesh, service)
    wait_until(lambda: mesh.pid(service) not in (None, before), BACK_S, f"{service} restarted")
    assert len(log_lines(mesh, service, "process.stopped")) == ended + 1
    wait_until(lambda: whole(mesh) and all_linked(mesh), BACK_S, "the mesh whole again")


STEPS = [
    ("executor-0", by_signal), ("executor-1", by_control),
    ("dispatcher", by_signal), ("dispatcher-1", by_control),
    ("preprocess", by_signal), ("preprocess-1", by_control),
    ("topology", by_signal), ("topology", by_control),
]  # fmt: skip


def test_a_rolling_restart_of_every_service_fails_no_request(doubled: Mesh) -> None:
    """Under 50 unary requests a second from clients that balance and retry UNAVAILABLE, and 10
    streams, which open anew when the front door at their other end goes."""
    doors = f"{doubled.addresses.front},{doubled.plan.more['preprocess-1']['SITS_PREPROCESS_BIND']}"
    with (
        Load(doors, clients=10, pause_s=0.2) as unary,
        StreamLoad(doors, clients=STREAMS, pause_s=0.5) as streams,
    ):
        for service, drain in STEPS:
            unary.wait_for_more(MORE)
            streams.wait_for_more(MORE)
            restart(doubled, service, drain)
        unary.wait_for_more(MORE)
        streams.wait_for_more(MORE)
    assert unary.all_right, unary
    assert streams.all_right, streams
    assert streams.ended >= STREAMS
