"""A model on a device, through the executor's own backend, without files and ports around it.

On the CPU the same way is gone, with reruns in place of graphs: to see that all of it works.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np
import torch
from google.protobuf import text_format

from sits_core.datatypes import Array
from sits_executor.backends.budget import Budget
from sits_executor.backends.pytorch import encoder, perceptron
from sits_executor.backends.pytorch.archives import Opened
from sits_executor.backends.pytorch.device import CpuDevice, CudaDevice, TorchDevice
from sits_executor.backends.pytorch.graph_options import GraphOptions
from sits_executor.backends.pytorch.model import Model, named
from sits_executor.backends.pytorch.streams import StreamedBackend
from sits_executor.contract import Contract, contract_of
from sits_protos.oip.model_config_pb2 import ModelConfig
from sits_sim.figures import Figure

Arrays = Mapping[str, Array]
VOCABULARY: Final = 1000


@dataclass(frozen=True, slots=True)
class Setup:
    """Where and how long to measure; what a part leaves lies in `folder`."""

    device: str
    quick: bool
    folder: Path

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    @property
    def half(self) -> torch.dtype:
        """Half precision where there is a GPU: CPUs have none worth it."""
        return torch.float16 if self.on_gpu else torch.float32

    def open(self) -> TorchDevice:
        return CudaDevice(0) if self.on_gpu else CpuDevice(captures=True)

    def times(self, count: int) -> int:
        return max(3, count // 20) if self.quick else count


Part = Callable[[Setup], list[Figure]]


@dataclass(frozen=True, slots=True)
class Net:
    """A network, its configuration, and random inputs for it."""

    name: str
    module: torch.nn.Module
    config: ModelConfig
    low: int
    high: int

    @property
    def contract(self) -> Contract:
        return contract_of(self.config, "1")

    def model(self) -> Model:
        names = tuple(entry.name for entry in self.config.input)
        return named(self.config, Opened(self.module, names))

    def inputs(self, rows: int, seed: int) -> dict[str, Array]:
        """Fresh random ones for every seed."""
        rng = np.random.default_rng(seed)
        entry = self.config.input[0]
        shape = (rows, *entry.dims)
        if self.high:
            return {entry.name: rng.integers(self.low, self.high, shape)}
        kind = np.float16 if entry.data_type == 10 else np.float32
        return {entry.name: rng.standard_normal(shape).astype(kind)}


def mlp(setup: Setup, layers: int = 20, width: int = 256, most: int = 8) -> Net:
    """`layers` of a linear map and a rectifier: two kernels each."""
    torch.manual_seed(1)
    module = perceptron.build({"layers": str(layers), "width": str(width)})
    return _net("mlp", setup, module, ("x", "TYPE_FP32", width), ("y", width), most, torch.float32)


def transformer(
    setup: Setup, name: str, layers: int, width: int, heads: int, tokens: int, most: int
) -> Net:
    """Token ids INT64 in, one vector a row out, half precision."""
    torch.manual_seed(1)
    options = {
        "layers": layers, "width": width, "heads": heads, "vocabulary": VOCABULARY,
        "positions": tokens,
    }  # fmt: skip
    module = encoder.build({key: str(value) for key, value in options.items()})
    ids = ("input_ids", "TYPE_INT64", tokens)
    return _net(name, setup, module, ids, ("pooled", width), most, setup.half, VOCABULARY)


def small_transformer(setup: Setup, most: int = 32) -> Net:
    """6 layers, width 384, 128 tokens."""
    if setup.on_gpu:
        return transformer(setup, "small transformer", 6, 384, 6, 128, most)
    return transformer(setup, "small transformer", 2, 32, 2, 8, most)


def bert(setup: Setup, most: int = 32) -> Net:
    """12 layers, width 768, 128 tokens."""
    if setup.on_gpu:
        return transformer(setup, "BERT base", 12, 768, 12, 128, most)
    return transformer(setup, "BERT base", 2, 64, 4, 8, most)


def backend(
    net: Net, device: TorchDevice, streams: int = 1, buckets: tuple[int, ...] | None = None
) -> StreamedBackend:
    """Captured and ready."""
    options = GraphOptions(buckets=buckets)
    opened = StreamedBackend(net.model(), device, streams, options, Budget())
    opened.prepare(net.contract)
    if opened.stats.fallbacks:
        raise RuntimeError(f"{net.name}: graphs fell back: {opened.stats.fallbacks}")
    return opened


def fly(opened: StreamedBackend, inputs: Arrays) -> dict[str, Array]:
    """One run the way that the scheduler makes it: staged, launched, looked at, landed."""
    staged = opened.stage(inputs)
    flight = opened.launch(staged, {}) if staged is not None else None
    if flight is None:
        raise RuntimeError("no stream is free")
    while not flight.done():
        pass
    outputs = dict(flight.land())
    flight.release()
    return outputs


def median_us(run: Callable[[], object], times: int, warm_up: int = 20) -> float:
    """Microseconds of one call, median of many."""
    return median(all_us(run, times, warm_up))


def all_us(run: Callable[[], object], times: int, warm_up: int = 20) -> list[float]:
    for _ in range(min(warm_up, times)):
        run()
    taken = []
    for _ in range(times):
        started = time.perf_counter_ns()
        run()
        taken.append((time.perf_counter_ns() - started) / 1e3)
    return taken


def _net(
    name: str,
    setup: Setup,
    module: torch.nn.Module,
    given: tuple[str, str, int],
    made: tuple[str, int],
    most: int,
    dtype: torch.dtype,
    high: int = 0,
) -> Net:
    module = module.to(setup.device, dtype).train(False)
    kind = "TYPE_FP16" if dtype == torch.float16 else "TYPE_FP32"
    config = text_format.Parse(
        f"name: '{name}' max_batch_size: {most} "
        f"input {{ name: '{given[0]}' data_type: {given[1]} dims: [{given[2]}] }} "
        f"output {{ name: '{made[0]}' data_type: {kind} dims: [{made[1]}] }}",
        ModelConfig(),
    )
    return Net(name, module, config, 0, high)
