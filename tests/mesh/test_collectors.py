"""Collectors that are absent, deaf or have no address harm no request and delay no exit (OTL)."""

import signal
import time
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton

from sits_cli.mesh import Mesh
from sits_cli.testing_load import Load
from sits_cli.testing_mesh import log_lines, metric, pid_of, tensor, whole
from sits_core.settings import Settings
from sits_core.testing import wait_until

pytestmark = pytest.mark.mesh

GRACE_S = float(Settings.model_fields["drain_grace_s"].default)
TRACES = 200
STAGES = {
    "preprocess": {"preprocess.request", "preprocess.queue"},
    "executor": {"executor.queue", "executor.input", "executor.infer", "executor.output"},
}
OUTCOMES = ("exported", "dropped", "failed")


def test_requests_do_not_notice_that_no_collector_takes_their_spans(solo: Mesh) -> None:
    """OTL-02: every request is traced; the front door's collector is deaf, the dispatcher's
    port is closed, the topology's name has no address."""
    with Load(solo.addresses.front, clients=4) as load:
        load.wait_for_more(300)
    assert load.all_right, load
    for service in ("preprocess", "dispatcher", "topology", "executor-0"):
        assert len(log_lines(solo, service, "otlp.enabled")) == 1
        assert len(log_lines(solo, service, "otlp.export_failed")) <= 1, "rate-limited"


@pytest.mark.parametrize("service", ["executor-0", "dispatcher", "topology", "preprocess"])
def test_they_end_within_their_grace_under_load(solo: Mesh, service: str) -> None:
    """OTL-02. Idle links and a deaf collector leave nothing to wait for."""
    with Load(solo.addresses.front, clients=2) as load:
        load.wait_for_more(20)
        pid, started_s = pid_of(solo, service), time.monotonic()
        solo.kill(service, signal.SIGTERM)
        wait_until(lambda: solo.pid(service) != pid, GRACE_S + 1, f"{service} ended")
        took_s = time.monotonic() - started_s
        solo.revive(service)
        wait_until(lambda: whole(solo), 30, "all ready")
        load.wait_for_more(20, 30)
    assert took_s < GRACE_S + 1
    assert load.answered == load.sent
    assert load.outcomes["wrong"] == 0


def trace_id(number: int) -> bytes:
    return bytes([0x0E]) * 12 + number.to_bytes(4, "big")


def test_every_span_is_received_or_counted(mesh: Mesh, collector: Any) -> None:
    """OTL-03: what the collector has of our traces is all of their stages, each once; what it
    got of a process at all is what that process counts as exported."""
    data = [tensor(np.ones((1, 4), np.float32))]
    with triton.InferenceServerClient(mesh.addresses.front) as client:
        for number in range(TRACES):
            parent = f"00-{trace_id(number).hex()}-{number + 1:016x}-01"
            client.infer("brief", data, headers={"traceparent": parent}, client_timeout=20)
    ours = {trace_id(number) for number in range(TRACES)}

    def received(name: str) -> int:
        spans = (span for found in list(collector.spans.values()) for span in list(found))
        return sum(span.name == name and span.trace_id in ours for span in spans)

    for stage in STAGES["preprocess"] | STAGES["executor"]:
        wait_until(lambda stage=stage: received(stage) == TRACES, 30, f"{stage} of all traces")
    for service, at in (
        ("preprocess", mesh.addresses.front_metrics),
        *((f"executor-{n}", at) for n, (_, at) in enumerate(mesh.addresses.executors)),
    ):
        outcomes = {o: metric(at, "sits_spans_total", outcome=o) for o in OUTCOMES}
        got = len(collector.spans[pid_of(mesh, service)])
        assert outcomes == {"exported": got, "dropped": 0, "failed": 0}
        assert metric(at, "sits_spans_queued") == 0
