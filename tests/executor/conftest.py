"""Real ONNX models built on the spot, and a real executor on a free port."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from onnx import TensorProto, helper

from sits_core.drain import Drain
from sits_core.testing import free_port
from sits_executor.app import serve
from sits_executor.backends import builtin, choice
from sits_executor.backends.base import Arrays, Backend, LoadSpec, Parameters
from sits_executor.settings import ExecutorSettings
from sits_executor.testing import TIMEOUT_S, FakeDispatcher, builtin_config

Dims = Sequence[int | str | None]


class OnnxModels:
    """Builders of serialized ONNX models."""

    types = TensorProto

    def unary(
        self, op: str, shape: Dims | None, elem: int = TensorProto.FLOAT, out: Dims | None = None
    ) -> bytes:
        """y = op(x)."""
        return self.graph(
            [helper.make_node(op, ["x"], ["y"])],
            [("x", elem, shape)],
            [("y", elem, shape if out is None else out)],
        )

    def add(self, shape: Dims, value: float = 0.0) -> bytes:
        """sum = a + b + value."""
        constant = helper.make_tensor("c", TensorProto.FLOAT, [], [value])
        nodes = [
            helper.make_node("Add", ["a", "b"], ["t"]),
            helper.make_node("Add", ["t", "c"], ["sum"]),
        ]
        inputs = [("a", TensorProto.FLOAT, shape), ("b", TensorProto.FLOAT, shape)]
        return self.graph(nodes, inputs, [("sum", TensorProto.FLOAT, shape)], [constant])

    def matmul(self, weights: list[list[float]]) -> bytes:
        """y = x @ weights."""
        rows, columns = len(weights), len(weights[0])
        flat = [value for row in weights for value in row]
        constant = helper.make_tensor("w", TensorProto.FLOAT, [rows, columns], flat)
        return self.graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            [("x", TensorProto.FLOAT, ["batch", rows])],
            [("y", TensorProto.FLOAT, ["batch", columns])],
            [constant],
        )

    def graph(
        self,
        nodes: list[Any],
        inputs: Sequence[tuple[str, int, Dims | None]],
        outputs: Sequence[tuple[str, int, Dims | None]],
        initializers: Sequence[Any] = (),
    ) -> bytes:
        graph = helper.make_graph(
            nodes,
            "test",
            [helper.make_tensor_value_info(*entry) for entry in inputs],
            [helper.make_tensor_value_info(*entry) for entry in outputs],
            initializer=list(initializers),
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 2)]
        serialized: bytes = helper.make_model(
            graph, opset_imports=opsets, ir_version=8
        ).SerializeToString()
        return serialized


@pytest.fixture(scope="session")
def onnx_models() -> OnnxModels:
    return OnnxModels()


class Running:
    """An executor served on a thread of this process."""

    def __init__(self, settings: ExecutorSettings) -> None:
        self.settings, self.stop = settings, Drain()
        self.address = settings.executor_bind
        self.metrics_url = f"http://{settings.executor_metrics_bind}/metrics"
        self.thread = threading.Thread(target=serve, args=(settings, self.stop), daemon=True)

    def metrics(self) -> str:
        with urlopen(self.metrics_url, timeout=TIMEOUT_S) as answer:  # noqa: S310 - our own
            return answer.read().decode()

    def health(self) -> str:
        with grpc.insecure_channel(self.address) as channel:
            ask, stub = health_pb2.HealthCheckRequest(), health_pb2_grpc.HealthStub(channel)
            answer = stub.Check(ask, wait_for_ready=True, timeout=TIMEOUT_S)
        return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


class Gate:
    """A model that runs when it is let: deterministic in place of slow."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self._arrived = threading.Semaphore(0)
        self.config = builtin_config("identity").replace('"builtin"', '"gated"')

    def close(self) -> None:
        """Runs from now on wait. Call once the model is ready."""
        self._open.clear()
        self._arrived = threading.Semaphore(0)

    def open(self) -> None:
        self._open.set()

    def wait_for_run(self) -> None:
        """Until a run has begun, and is waiting."""
        assert self._arrived.acquire(timeout=TIMEOUT_S), "no run began"

    def load(self, spec: LoadSpec) -> Backend:
        backend = builtin.load(spec)
        run = backend.run

        def gated(inputs: Arrays, parameters: Parameters) -> Arrays:
            self._arrived.release()
            assert self._open.wait(TIMEOUT_S), "the gate stayed closed"
            return run(inputs, parameters)

        backend.run = gated  # type: ignore[method-assign]
        return backend


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    own = Gate()
    monkeypatch.setitem(choice.BACKENDS, "gated", choice.Choice("gated", "gated", "", own.load))
    yield own
    own.open()


Start = Callable[..., Any]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


@pytest.fixture
def executor(repository: Path, tmp_path: Path) -> Start:
    """A context manager: `with executor(**settings) as running`."""

    @contextmanager
    def start(**values: Any) -> Iterator[Running]:
        shm = tmp_path / "shm"
        shm.mkdir(exist_ok=True)
        chosen = {
            "executor_bind": f"127.0.0.1:{free_port()}",
            "executor_metrics_bind": f"127.0.0.1:{free_port()}",
            "executor_model_repository": str(repository),
            "executor_pool_bytes": 4 << 20,
            "shm_dir": str(shm),
            "drain_grace_s": 5.0,
        }
        running = Running(ExecutorSettings(**(chosen | values)))
        running.thread.start()
        try:
            yield running
        finally:
            running.stop.set()
            running.thread.join(TIMEOUT_S)
        assert not running.thread.is_alive(), "the executor did not stop"

    return start


@pytest.fixture
def linked(executor: Start) -> Start:
    """`with linked(**settings) as (running, dispatcher)`."""

    @contextmanager
    def start(**values: Any) -> Iterator[tuple[Running, FakeDispatcher]]:
        with executor(**values) as running, FakeDispatcher(running.address) as dispatcher:
            yield running, dispatcher

    return start
