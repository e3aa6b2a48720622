"""A front door on a real socket, with a fake engine behind it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from prometheus_client import CollectorRegistry
from tritonclient.utils import np_to_triton_dtype

from sits_core.errors import Unavailable
from sits_core.testing import wait_until
from sits_core.tracing import Tracer
from sits_preprocess.cache.testing import Cache
from sits_preprocess.catalog import Model
from sits_preprocess.fake_engine import FakeEngine, default_models
from sits_preprocess.front import Front, build
from sits_preprocess.repository import Repository
from sits_preprocess.settings import PreprocessSettings
from sits_preprocess.testing_engine import World
from sits_protos.v1.control_pb2_grpc import ControlStub


def no_dispatcher() -> ControlStub:
    raise Unavailable("no dispatcher is connected")


@dataclass
class Served:
    """A running front door and what a test needs to look behind it."""

    front: Front
    engine: FakeEngine
    tracer: Tracer
    registry: CollectorRegistry
    clients: list[triton.InferenceServerClient] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.front.transport.port}"

    def client(self, **options: Any) -> triton.InferenceServerClient:
        client = triton.InferenceServerClient(self.address, **options)
        self.clients.append(client)
        return client

    def infer(self, model: str, *arrays: np.ndarray, **options: Any) -> triton.InferResult:
        """Send the arrays as INPUT0, INPUT1, …"""
        client = self.clients[0] if self.clients else self.client()
        return client.infer(model, tensors(*arrays), **options)

    def until(self, condition: Callable[[], bool]) -> None:
        wait_until(condition)

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0

    def stop(self) -> None:
        for client in self.clients:
            client.close()
        self.engine.finish_all()
        self.front.stop(0.5)


def tensors(*arrays: np.ndarray) -> list[triton.InferInput]:
    inputs = []
    for number, array in enumerate(arrays):
        name, datatype = f"INPUT{number}", np_to_triton_dtype(array.dtype)
        inputs.append(triton.InferInput(name, array.shape, datatype))
        inputs[-1].set_data_from_numpy(array)
    return inputs


Serve = Callable[..., Served]


@pytest.fixture
def served(serve: Serve) -> Served:
    """A front door with the default models."""
    return serve()


@pytest.fixture(params=["grpcio", "native"])
def transport(request: pytest.FixtureRequest) -> str:
    """Every rule of the front port holds on both transports."""
    return request.param


@pytest.fixture
def serve(transport: str) -> Iterator[Serve]:
    """Starts front doors; settings by keyword, `models` and `engine` too."""
    running: list[Served] = []

    def start(
        *models: Model, engine: FakeEngine | None = None, ratio: float = 0.0, **values: Any
    ) -> Served:
        bind = values.pop("preprocess_bind", "127.0.0.1:0")
        values.setdefault("preprocess_transport", transport)
        settings = PreprocessSettings(preprocess_bind=bind, **values)
        engine = engine or FakeEngine(*(models or default_models()))
        tracer = Tracer("preprocess", 1000, ratio)
        registry = CollectorRegistry()
        repository = Repository(engine.catalog, no_dispatcher)
        front = build(settings, engine, repository, tracer, registry)
        front.start()
        served = Served(front, engine, tracer, registry)
        running.append(served)
        return served

    yield start
    for served in running:
        served.stop()


@pytest.fixture
def world() -> Iterator[World]:
    """An engine without a front port."""
    made = World()
    yield made
    made.engine.stop()


@pytest.fixture
def open_cache() -> Iterator[Callable[..., Cache]]:
    """Response caches over fake engines; all are stopped with the test."""
    opened: list[Cache] = []

    def start(*models: Model, **options: Any) -> Cache:
        opened.append(Cache(*models, **options))
        return opened[-1]

    yield start
    for cache in opened:
        cache.cache.stop()
