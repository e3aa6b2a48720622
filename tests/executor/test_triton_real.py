"""An executor in front of a real Triton server, with its python backend. `make bench-peers`
installs one; without it these are skipped."""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from sits_core.testing import free_port, wait_until
from sits_executor.testing import FakeDispatcher, arrays_of, batch
from sits_protos.v1 import control_pb2
from sits_protos.v1.control_pb2_grpc import ControlStub

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from sits_bench import peers

pytestmark = pytest.mark.skipif(
    not peers.installed("triton"), reason="no Triton server: make bench-peers installs one"
)

READY_S = 60.0
MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        if (x < 0).any():
            return pb_utils.InferenceResponse([], pb_utils.TritonError("negative numbers"))
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", x * 2)])
"""
CONFIG = """
backend: "python" max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }
instance_group { count: 1 kind: KIND_CPU }
"""
X = np.array([[1, 2], [3, 4]], np.float32)


def write(repository: Path, name: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "1" / "model.py").write_text(MODEL)
    (repository / name / "config.pbtxt").write_text(f'name: "{name}"{CONFIG}')


@contextmanager
def server(repository: Path, port: int, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Real, on this port, until the end of the block; ready when entered."""
    argv = [
        str(peers._package() / "bin" / "tritonserver"),
        f"--model-repository={repository}",
        f"--backend-directory={peers._backends()}",
        "--model-control-mode=explicit",
        "--load-model=double",
        "--grpc-address=127.0.0.1",
        f"--grpc-port={port}",
        "--allow-http=false",
        "--allow-metrics=false",
    ]
    env = {
        **os.environ,
        "LD_LIBRARY_PATH": str(sysconfig.get_config_var("LIBDIR")),
        "PATH": peers._path("triton"),
    }
    with log.open("ab") as file, subprocess.Popen(argv, env=env, stdout=file, stderr=file) as own:
        try:
            with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
                wait_until(lambda: _ready(client), READY_S)
            yield own
        finally:
            own.kill()


def _ready(client: Any) -> bool:
    try:
        return bool(client.is_model_ready("double"))
    except InferenceServerException:
        return False


@pytest.mark.timeout(240)
def test_a_real_server_s_models_errors_statistics_and_absence(linked: Any, tmp_path: Path) -> None:
    """In one test, since each start of it takes seconds."""
    repository, port, log = tmp_path / "triton", free_port(), tmp_path / "triton.log"
    write(repository, "double")
    write(repository, "later")
    settings = {"executor_triton_url": f"127.0.0.1:{port}", "executor_triton_period_s": 0.1}
    with linked(**settings) as (running, dispatcher):
        stub = ControlStub(grpc.insecure_channel(running.address))
        with server(repository, port, log):
            dispatcher.wait_ready("double")
            _batches_and_errors(dispatcher)
            _shared_memory(dispatcher)
            _loads(stub, dispatcher)
            _statistics(running)
        dispatcher.wait(lambda: dispatcher.state("double") == "UNAVAILABLE", "loss")
        failed = dispatcher.run(batch(50, "double", [X])).result.error
        assert (failed.code, failed.reason) == (14, "MODEL_NOT_READY")
        with server(repository, port, log):
            dispatcher.wait_ready("double")
            assert np.array_equal(_y(dispatcher, 51, X), X * 2)


def _y(dispatcher: FakeDispatcher, number: int, *arrays: Any) -> Any:
    return arrays_of(dispatcher.run(batch(number, "double", arrays)))["y"]


def _batches_and_errors(dispatcher: FakeDispatcher) -> None:
    assert np.array_equal(_y(dispatcher, 1, X, X[:1]), np.concatenate([X, X[:1]]) * 2)
    mixed = dispatcher.run(batch(2, "double", [X, -X]))
    assert not mixed.results[0].HasField("error")
    assert "negative numbers" in mixed.results[1].error.message
    assert np.array_equal(arrays_of(mixed)["y"], X * 2), "the good request's rows alone"


def _shared_memory(dispatcher: FakeDispatcher) -> None:
    large = np.arange(8 * 20_000, dtype=np.float32).reshape(8, -1)
    for number in (10, 11):
        assert np.array_equal(_y(dispatcher, number, large), large * 2)


def _loads(stub: Any, dispatcher: FakeDispatcher) -> None:
    assert dispatcher.state("later") == ""
    stub.LoadModel(control_pb2.LoadModelRequest(model="later"), timeout=READY_S)
    dispatcher.wait_ready("later")
    stub.UnloadModel(control_pb2.UnloadModelRequest(model="later"), timeout=READY_S)
    dispatcher.wait(lambda: dispatcher.state("later") == "UNAVAILABLE", "unload")
    with pytest.raises(grpc.RpcError) as refused:
        stub.LoadModel(control_pb2.LoadModelRequest(model="nowhere"), timeout=READY_S)
    assert refused.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL)


def _statistics(running: Any) -> None:
    def counted() -> float:
        name = 'sits_executor_triton_inferences_total{model="double",version="1"} '
        lines = [line for line in running.metrics().splitlines() if line.startswith(name)]
        return float(lines[0].removeprefix(name)) if lines else 0.0

    wait_until(lambda: counted() >= 21)
