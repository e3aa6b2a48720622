"""The references and the front door alone start, and answer rightly."""

from urllib.request import urlopen

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from sits_bench import checks, repositories
from sits_bench.mesh_system import MeshSystem
from sits_bench.messages import Inference, random_floats
from sits_bench.no_dispatcher import NoDispatcher
from sits_bench.servers import Echo, FrontAlone, NaiveMesh, Refusing
from sits_bench.system import System

ECHO = Inference("echo", {"INPUT": random_floats(1, 1, 256)})


@pytest.mark.parametrize(
    "system", [Echo("sync"), Echo("aio"), FrontAlone(), NaiveMesh(2)], ids=lambda s: s.name
)
def test_it_echoes(system: System) -> None:
    with system.start() as running:
        checks.echoes(running, ECHO)
        assert running.pids()


def test_the_mesh_without_a_dispatcher_goes_around_it() -> None:
    system = MeshSystem("no dispatcher", [repositories.echo()], made_by=NoDispatcher)
    with system.running() as (mesh, running):
        checks.echoes(running, ECHO)
        with urlopen(f"http://{mesh.addresses.admin}/metrics", timeout=10) as answer:
            assert "sits_dispatcher_batches_total{" not in answer.read().decode()


def test_one_refuses_whatever_is_asked() -> None:
    given = triton.InferInput("INPUT", [1, 256], "FP32")
    given.set_data_from_numpy(np.zeros((1, 256), np.float32))
    with Refusing().start() as running, triton.InferenceServerClient(running.target) as client:
        for _ in range(3):
            with pytest.raises(InferenceServerException) as refused:
                client.infer("echo", [given])
            assert refused.value.status() == str(grpc.StatusCode.RESOURCE_EXHAUSTED)
