"""Pipelines of PyTorch models: tensors stay where they are, and come out as over the host."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from prometheus_client import CollectorRegistry
from safetensors.torch import save_file

from sits_core.datatypes import NUMPY_TYPES
from sits_executor.app import open_executor
from sits_executor.backends.base import Resident
from sits_executor.backends.budget import Budget
from sits_executor.backends.pytorch import modules
from sits_executor.backends.pytorch.archives import Opened
from sits_executor.backends.pytorch.device import CpuDevice
from sits_executor.backends.pytorch.graph_options import GraphOptions
from sits_executor.backends.pytorch.model import Model
from sits_executor.backends.pytorch.resident import TorchMemory
from sits_executor.backends.pytorch.streams import StreamedBackend
from sits_executor.contract import Contract, TensorContract
from sits_executor.executor import Executor
from sits_executor.pipelines.backend import PipelineBackend
from sits_executor.pipelines.host import HOST
from sits_executor.settings import ExecutorSettings
from sits_executor.testing import TIMEOUT_S, builtin_config, pipeline_config, write_model

CPU = TorchMemory(torch.device("cpu"))
CONTRACT = Contract(
    "m", "1", 8,
    {"x": TensorContract("x", "FP32", (4,), None)},
    (TensorContract("y", "FP32", (1,), None),),
)  # fmt: skip


class Sums(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(1, keepdim=True)


@pytest.fixture(name="models")
def make_models(repository: Path, tmp_path: Path) -> Iterator[Executor]:
    settings = ExecutorSettings(
        executor_model_repository=str(repository), executor_pool_bytes=0, shm_dir=str(tmp_path)
    )
    with open_executor(settings, CollectorRegistry()) as executor:
        yield executor


@pytest.mark.parametrize("datatype", ["FP32", "FP16", "BF16", "INT64", "BOOL"])
def test_arrays_come_back_as_they_were_put(datatype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(NUMPY_TYPES[datatype])
    array.setflags(write=False)
    stored = CPU.put(array)
    assert CPU.describe(stored) == (datatype, (2, 3))
    assert CPU.get(stored).dtype == array.dtype
    assert CPU.get(stored).tolist() == array.tolist()


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_a_conversion_on_the_device_rounds_as_one_on_the_host_does(datatype: str) -> None:
    array = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
    there = CPU.get(CPU.cast(CPU.put(array), datatype))
    assert there.tobytes() == HOST.get(HOST.cast(array, datatype)).tobytes()


def test_memories_of_one_device_are_the_same() -> None:
    assert TorchMemory(torch.device("cpu")) == CPU
    assert TorchMemory(torch.device("cuda", 0)) == TorchMemory(torch.device("cuda", 0))
    assert TorchMemory(torch.device("cuda", 0)) != TorchMemory(torch.device("cuda", 1))
    assert len({CPU, TorchMemory(torch.device("cpu"))}) == 1


@pytest.mark.parametrize(("rows", "way"), [(8, (1, 0)), (3, (1, 0)), (9, (0, 1))])
def test_a_step_runs_by_its_graph_where_one_holds_the_rows(rows: int, way: Any) -> None:
    """Padded rows are zeros and do not come out."""
    model = Model(Opened(Sums(), ("x",)).module, ("x",), ("y",))
    device = CpuDevice(captures=True)
    backend = StreamedBackend(model, device, 1, GraphOptions(after=2), Budget())
    backend.prepare(CONTRACT)
    assert isinstance(backend, Resident)
    x = np.random.default_rng(rows).standard_normal((rows, 4), np.float32)
    with backend.home.working():
        results = backend.run_resident({"x": backend.home.put(x)}, {})
        y = backend.home.get(results["y"])
    assert np.allclose(y, x.sum(1, keepdims=True), atol=1e-6)
    assert (backend.stats.replays, backend.stats.eager_runs) == way
    assert backend.free == 1
    backend.close()


def perceptron(repository: Path, name: str, precision: str) -> None:
    """[rows, 4] → [rows, 4], with weights of its own."""
    options = {"layers": "1", "width": "4"}
    torch.manual_seed(len(name))
    module = modules.build("perceptron", options)
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    save_file(module.state_dict(), folder / "model.safetensors")
    config = builtin_config("x", datatype=precision, dims=[4]).replace("builtin", "pytorch")
    for key, value in {"module": "perceptron", "precision": precision.lower()}.items():
        config += f'\nparameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}'
    for key, value in options.items():
        config += f'\nparameters {{ key: "module.{key}" value: {{ string_value: "{value}" }} }}'
    (folder.parent / "config.pbtxt").write_text(config)


def chain(*names: str) -> list[str]:
    tensors = ["x", *(f"h{index}" for index in range(1, len(names))), "y"]
    return [
        f'{{ model_name: "{name}" input_map {{ key: "x" value: "{source}" }} '
        f'output_map {{ key: "y" value: "{target}" }} }}'
        for name, source, target in zip(names, tensors, tensors[1:], strict=False)
    ]


def test_steps_of_one_device_hand_tensors_on_and_convert_there(
    repository: Path, models: Executor
) -> None:
    """x → FP16 → FP16 → BF16 → y: in once, two conversions, out once."""
    for name, precision in (("a", "FP16"), ("bb", "FP16"), ("ccc", "BF16")):
        perceptron(repository, name, precision)
    write_model(repository, "p", pipeline_config(chain("a", "bb", "ccc"), dims=[4]))
    models.manager.load("p").result(TIMEOUT_S)
    backend = models.catalog.find("p", "").backend
    assert isinstance(backend, PipelineBackend)
    ways = [(repr(c.source.memory), repr(c.target.memory)) for c in backend.graph.conversions]
    assert ways == [("host", "cpu"), ("cpu", "cpu"), ("cpu", "host")]
    assert [len(stage) for stage in backend.graph.stages()] == [2, 1]
    x = np.random.default_rng(0).standard_normal((3, 4), np.float32)
    expected: Any = x
    for name, precision in (("a", "FP16"), ("bb", "FP16"), ("ccc", "BF16")):
        model = models.catalog.find(name, "").backend
        expected = model.run({"x": expected.astype(NUMPY_TYPES[precision])}, {})["y"]
    got = backend.run({"x": x}, {})["y"]
    assert got.dtype == np.float32
    assert got.tolist() == expected.astype(np.float32).tolist()


def test_steps_on_the_host_and_on_a_device_work_together(
    repository: Path, models: Executor
) -> None:
    perceptron(repository, "a", "FP32")
    write_model(repository, "host", builtin_config("identity", dims=[4]))
    write_model(repository, "p", pipeline_config(chain("host", "a", "host"), dims=[4]))
    models.manager.load("p").result(TIMEOUT_S)
    x = np.random.default_rng(0).standard_normal((2, 4), np.float32)
    got = models.catalog.find("p", "").backend.run({"x": x}, {})["y"]
    alone = models.catalog.find("a", "").backend.run({"x": x}, {})["y"]
    assert got.tolist() == alone.tolist()
