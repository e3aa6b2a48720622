"""A whole executor whose model runs on streams; on the CPU, the same way as on a GPU."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from safetensors.torch import save_file

from sits_core.testing import free_port
from sits_executor.backends import choice
from sits_executor.backends.base import Backend, LoadSpec
from sits_executor.backends.pytorch import loading, modules
from sits_executor.backends.pytorch.device import CpuDevice, Event, Stream
from sits_executor.drain import EXIT_DEVICE_LOST
from sits_executor.testing import TIMEOUT_S, arrays_of, batch

CONFIG = """
backend: "flown" max_batch_size: 8 instance_group { count: 2 }
input { name: "x" data_type: TYPE_FP32 dims: [4] }
output { name: "y" data_type: TYPE_FP32 dims: [4] }
parameters { key: "module" value { string_value: "perceptron" } }
parameters { key: "module.layers" value { string_value: "2" } }
parameters { key: "module.width" value { string_value: "4" } }
"""
STICKY = "CUDA error: an illegal memory access was encountered"


class Breakable(CpuDevice):
    """Its events raise, once `broken`."""

    def __init__(self) -> None:
        super().__init__(captures=True)
        self.broken = threading.Event()

    def event(self) -> Event:
        return BreakableEvent(self.broken)


class BreakableEvent:
    def __init__(self, broken: threading.Event) -> None:
        self._broken = broken

    def record(self, stream: Stream) -> None:
        return None

    def query(self) -> bool:
        if self._broken.is_set():
            raise RuntimeError(STICKY)
        return True


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Breakable:
    own = Breakable()

    def load(spec: LoadSpec) -> Backend:
        return loading.streamed(spec, own)

    flown = choice.Choice("flown", "flown", "model.safetensors", load)
    monkeypatch.setitem(choice.BACKENDS, "flown", flown)
    return own


@pytest.fixture
def module(repository: Path) -> torch.nn.Module:
    built = modules.build("perceptron", {"layers": "2", "width": "4"})
    folder = repository / "m" / "1"
    folder.mkdir(parents=True)
    save_file(built.state_dict(), folder / "model.safetensors")
    (folder.parent / "config.pbtxt").write_text(CONFIG)
    return built


def expected(module: torch.nn.Module, x: Any) -> Any:
    with torch.inference_mode():
        return module(torch.from_numpy(x)).numpy()


def test_batches_come_back_right_through_streams_and_graphs(
    device: Breakable, module: torch.nn.Module, linked: Any
) -> None:
    with linked(executor_buffer_samples=1024) as (running, dispatcher):
        dispatcher.wait_ready("m")
        rng = np.random.default_rng(0)
        inputs = [rng.standard_normal((1 + n % 8, 4), np.float32) for n in range(40)]
        for number, x in enumerate(inputs):
            dispatcher.send(batch(number, "m", [x]))
        for number, x in enumerate(inputs):
            y = arrays_of(dispatcher.result(number))["y"]
            np.testing.assert_allclose(y, expected(module, x), rtol=1e-5, atol=1e-6)
        text = running.metrics()
    assert 'sits_executor_graphs{model="m"} 8.0' in text
    assert 'sits_executor_graph_replays_total{model="m"} 40.0' in text
    assert "sits_executor_streams_running 0.0" in text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_lost_device_is_not_ready_at_once_and_what_waits_goes_elsewhere(
    device: Breakable, module: torch.nn.Module, linked: Any
) -> None:
    with linked() as (running, dispatcher):
        dispatcher.wait_ready("m")
        serving = HealthCheckResponse.SERVING
        dispatcher.wait(lambda: health(running.address) == serving, "readiness")
        device.broken.set()
        failed = dispatcher.run(batch(1, "m", [np.ones((1, 4), np.float32)]))
        assert (failed.result.error.code, failed.result.error.reason) == (13, "DEVICE_LOST")
        dispatcher.wait(lambda: dispatcher.state("m") != "READY", "the withdrawal")
        dispatcher.wait(lambda: dispatcher.hellos[-1].draining, "the drain")
        running.thread.join(TIMEOUT_S)
        assert not running.thread.is_alive(), "it ends by itself"
    timers = [t for t in threading.enumerate() if isinstance(t, threading.Timer)]
    last_resorts = [t for t in timers if t.function is os._exit and not t.finished.is_set()]
    assert last_resorts == []


def health(address: str) -> int:
    with grpc.insecure_channel(address) as channel:
        return int(HealthStub(channel).Check(HealthCheckRequest()).status)


BROKEN = """
from sits_executor.backends import choice
from sits_executor.backends.streamed import DeviceLost
from sits_executor.streams.testing import FakeStreams
import runpy

class Lost(FakeStreams):
    def launch(self, staged, parameters):
        raise DeviceLost("gone")

choice.BACKENDS["flown"] = choice.Choice("flown", "flown", "", lambda spec: Lost())
runpy.run_module("sits_executor", run_name="__main__")
"""


def test_the_process_of_a_lost_device_ends_with_a_status_that_means_start_me_again(
    tmp_path: Path, repository: Path
) -> None:
    from sits_executor.testing import FakeDispatcher

    (repository / "m" / "1").mkdir(parents=True)
    (repository / "m" / "config.pbtxt").write_text(CONFIG)
    address = f"127.0.0.1:{free_port()}"
    environment = {
        **os.environ,
        "SITS_EXECUTOR_BIND": address,
        "SITS_EXECUTOR_METRICS_BIND": f"127.0.0.1:{free_port()}",
        "SITS_EXECUTOR_MODEL_REPOSITORY": str(repository),
        "SITS_SHM_DIR": str(tmp_path),
    }
    process = subprocess.Popen([sys.executable, "-c", BROKEN], env=environment)
    try:
        with FakeDispatcher(address) as dispatcher:
            dispatcher.wait_ready("m")
            failed = dispatcher.run(batch(1, "m", [np.ones((1, 4), np.float32)]))
            assert failed.result.error.reason == "DEVICE_LOST"
            assert process.wait(TIMEOUT_S) == EXIT_DEVICE_LOST
    finally:
        process.kill()
        process.wait()
