"""`python -m sits_topology` as a process: ready, drained, and refused with a variable's name."""

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sits_core.testing import free_port, wait_until
from sits_protos.v1.topology_pb2 import GetTopologyRequest
from sits_protos.v1.topology_pb2_grpc import TopologyStub
from sits_topology.settings import TopologySettings

README = Path(__file__).parents[2] / "services/topology/README.md"


@contextmanager
def running(**settings: str) -> Iterator[subprocess.Popen[str]]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SITS_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "sits_topology"],
        env=clean | {f"SITS_{name.upper()}": value for name, value in settings.items()},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def serving(channel: grpc.Channel) -> bool:
    try:
        answer = health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(), timeout=1
        )
    except grpc.RpcError:
        return False
    return answer.status == health_pb2.HealthCheckResponse.SERVING


def test_it_serves_until_sigterm_and_leaves_with_zero(data):
    bind, metrics = (f"127.0.0.1:{free_port()}" for _ in range(2))
    source = str(data / "topo/13-a100-8-nic-legend.txt")
    settings = {"topology_bind": bind, "topology_metrics_bind": metrics, "topology_source": source}
    with running(**settings) as process, grpc.insecure_channel(bind) as channel:
        wait_until(lambda: serving(channel), 30, "readiness")
        snapshot = TopologyStub(channel).Get(GetTopologyRequest(), timeout=10)
        assert list(snapshot.sources) == ["topo-m"]
        with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=10) as answer:
            assert b'sits_topology_devices{kind="gpu"} 8.0' in answer.read()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("topology_source", "/nowhere", "expected auto, nvml, sysfs or a readable file"),
        ("topology_source", "{data}/nccl/azure-ncv4-graph.xml", "root <graphs>"),
        ("topology_source", "{data}/topo/11-dgx2-v100-16-truncated.txt", "the paste was cut"),
        ("topology_period_s", "60", "less than or equal to 10"),
        ("topology_bind", "0.0.0.0:8030", "set SITS_MESH_TOKEN"),
    ],
)
def test_a_wrong_setting_stops_it_with_the_name_of_the_variable(name, value, said, data):
    with running(**{name: value.format(data=data)}) as process:
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 2
    assert f"SITS_{name.upper()}" in errors
    assert said in errors
    assert len(errors.splitlines()) == 1


def test_the_readme_lists_the_settings_and_their_defaults():
    rows = dict(
        re.findall(r"^\| `(SITS_TOPOLOGY_\w+)` \| `?([^`|]*?)`? ?\|", README.read_text(), re.M)
    )
    own = {name: f for name, f in TopologySettings.model_fields.items() if "topology" in name}
    assert rows == {f"SITS_{name.upper()}": str(f.default) for name, f in own.items()}
