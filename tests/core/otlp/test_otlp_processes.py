"""Processes that fork, spawn others or end while spans wait."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sits_core import otlp

ENDPOINT, PROTOCOL = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_PROTOCOL"
Serve = Callable[..., int]


SCRIPT = """
import multiprocessing, os, sys
from prometheus_client import CollectorRegistry
from sits_core.settings import Settings
from sits_core.telemetry import open_tracer
from sits_core.testing import wait_until

def work(name):
    registry = CollectorRegistry()
    with open_tracer("executor", Settings(), registry, name) as tracer:
        tracer.record("executor.infer", tracer.new_trace(), 1, 2, {})
        # The end of a process waits a second at most, which a busy machine needs to begin with.
        exported = {"outcome": "exported"}
        wait_until(lambda: registry.get_sample_value("sits_spans_total", exported), 30, "sent")

def fork(tracer):
    for _ in range(5):
        child = os.fork()
        if child == 0:
            for _ in range(10):
                tracer.record("in.child", tracer.new_trace(), 1, 2, {})
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0, status

if __name__ == "__main__":
    with open_tracer("executor", Settings(), CollectorRegistry(), "parent") as tracer:
        tracer.record("executor.infer", tracer.new_trace(), 1, 2, {})
        if sys.argv[1] == "fork":
            fork(tracer)
        elif sys.argv[1] == "spawn":
            spawn = multiprocessing.get_context("spawn")
            workers = [spawn.Process(target=work, args=(f"worker-{n}",)) for n in range(2)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
"""


def run_script(tmp_path: Path, method: str, port: int, **variables: str) -> str:
    script = tmp_path / "workers.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), method],
        env={**os.environ, ENDPOINT: f"127.0.0.1:{port}", **variables},
        capture_output=True,
        text=True,
        timeout=45,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def instances(collector: Any) -> set[str]:
    return {
        item.value.string_value
        for request in collector.requests
        for item in request.resource_spans[0].resource.attributes
        if item.key == "service.instance.id"
    }


def test_a_forked_child_does_not_hang_and_says_that_its_spans_are_dropped(
    collector: Any, serve_grpc: Serve, tmp_path: Path
) -> None:
    said = run_script(tmp_path, "fork", serve_grpc())
    assert said.count(otlp.FORK_WARNING.decode()) == 5
    assert (collector.spans, instances(collector)) == (1, {"parent"})


def test_spans_come_from_every_spawned_worker(
    collector: Any, serve_grpc: Serve, tmp_path: Path
) -> None:
    assert otlp.FORK_WARNING.decode() not in run_script(tmp_path, "spawn", serve_grpc())
    assert instances(collector) == {"parent", "worker-0", "worker-1"}


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_process_ends_while_its_collector_does_not_answer(
    protocol: str, deaf_port: int, tmp_path: Path
) -> None:
    long = {"OTEL_EXPORTER_OTLP_TIMEOUT": "300", PROTOCOL: protocol}
    run_script(tmp_path, "exit", deaf_port, **long)
