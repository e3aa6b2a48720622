"""A pipeline of mixed precision, converted where precisions differ, against every step converting
for itself.

Eight small perceptrons of the pytorch backend in three precisions make up one pipeline of the
executor (`SEQUENCE`). Three ways take turns, run by run, in one process: `bare` gives every step
its input ready, in its precision, on its device; `merged` is the executor's graph; `each` is the
same graph with every step converting its inputs from FP32 and its outputs to FP32. Each way copies
one array in and waits for one result out. A way's overhead is its median time minus that of
`bare`: conversions, and what it takes to know what comes next.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import torch
from prometheus_client import CollectorRegistry

from gpu.rig import Setup
from sits_bench import machine
from sits_bench.bars import at_most_times
from sits_bench.show import finish, main, options
from sits_core.datatypes import NUMPY_TYPES, Array
from sits_core.pipeline import read
from sits_executor.app import open_executor
from sits_executor.backends.base import Memory, Resident, Stored
from sits_executor.backends.pytorch import modules
from sits_executor.executor import Executor
from sits_executor.pipelines.backend import PipelineBackend
from sits_executor.pipelines.graph import Graph, Node
from sits_executor.pipelines.host import HOST
from sits_executor.pipelines.program import OpenStep
from sits_executor.settings import ExecutorSettings
from sits_protos.oip.model_config_pb2 import ModelConfig
from sits_sim.figures import Figure, Report, at_most, plain

SEQUENCE: Final = ("FP32", "FP16", "FP16", "FP16", "BF16", "BF16", "FP32", "FP32")
"""Ten conversions when each step converts, three where neighbours differ."""
LAYERS, WIDTH, ROWS = 2, 256, 8
BAR: Final = 1 - 0.29
RUNS, QUICK_RUNS, WARMUP = 2000, 30, 50
LOAD_S: Final = 300.0
PIPELINE: Final = "mixed"

Way = Callable[[], Array]


def measure(setup: Setup) -> list[Figure]:
    return figures(setup.device, quick=setup.quick)


def figures(device: str = "cuda", *, quick: bool = False) -> list[Figure]:
    """`device` "cpu" shows that it works and says nothing about GPUs; so do `quick` runs."""
    with opened(device) as executor:
        return compared(executor, QUICK_RUNS if quick else RUNS)


def compared(executor: Executor, runs: int) -> list[Figure]:
    x = np.random.default_rng(1).standard_normal((ROWS, WIDTH), np.float32)
    ways = {
        "bare": bare(executor, x),
        "merged": through(pipeline(executor, merge=True), x),
        "each": through(pipeline(executor, merge=False), x),
    }
    us = timed(ways, runs)
    merged, each = us["merged"] - us["bare"], us["each"] - us["bare"]
    apart = int((ways["merged"]() != ways["each"]()).sum())
    return [
        plain("precision.bare: the steps alone, one copy in and one out", us["bare"], "us"),
        plain("precision.merged: the pipeline", us["merged"], "us"),
        plain("precision.each: every step converts", us["each"], "us"),
        at_most_times(
            "precision: overhead against that of converting at every step", merged, "us", each, BAR
        ),
        at_most("precision.same: results that differ between both ways", apart, "numbers", 0),
    ]


def timed(ways: Mapping[str, Way], runs: int) -> dict[str, float]:
    """Medians in microseconds; the ways take turns, and each goes first as often."""
    times: dict[str, list[int]] = {name: [] for name in ways}
    order = list(ways)
    for run in range(runs + WARMUP):
        order.append(order.pop(0))
        for name in order:
            started = time.perf_counter_ns()
            ways[name]()
            if run >= WARMUP:
                times[name].append(time.perf_counter_ns() - started)
    return {name: median(found) / 1e3 for name, found in times.items()}


# the three ways


def bare(executor: Executor, x: Array) -> Way:
    """Inputs of all steps but the first are there before, as the step before left them."""
    steps = [resident(executor, index) for index in range(len(SEQUENCE))]
    home = steps[0].home
    ready = [home.put(x.astype(NUMPY_TYPES[precision])) for precision in SEQUENCE]

    def run() -> Array:
        with home.working():
            made: Stored = home.put(x)
            for index, step in enumerate(steps):
                given = made if index == 0 else ready[index]
                made = step.run_resident({"x": given}, {})["y"]
            return home.get(made)

    return run


def through(backend: PipelineBackend, x: Array) -> Way:
    return lambda: backend.run({"x": x}, {})["y"]


def pipeline(executor: Executor, *, merge: bool) -> PipelineBackend:
    """Of the models that are loaded. The executor's own one is made alike, with `merge`."""
    found = executor.catalog.find(PIPELINE, "")
    steps = read(ModelConfig.FromString(found.entry.config))
    models = [executor.catalog.find(step.model, "") for step in steps.steps]
    nodes = [
        Node(step, model.contract, home(executor, index))
        for index, (step, model) in enumerate(zip(steps.steps, models, strict=True))
    ]
    graph = Graph(steps, found.contract, nodes, HOST, merge=merge)
    held = [
        OpenStep(model.shared, lambda seconds: None, resident(executor, index))
        for index, model in enumerate(models)
    ]
    return PipelineBackend(graph, found.contract, tuple(held))


def resident(executor: Executor, index: int) -> Resident:
    backend = executor.catalog.find(model(index), "").backend
    if not isinstance(backend, Resident):
        raise TypeError(f"expected a backend that keeps tensors on its device, got {backend!r}")
    return backend


def home(executor: Executor, index: int) -> Memory:
    return resident(executor, index).home


# the models


@contextmanager
def opened(device: str) -> Iterator[Executor]:
    with TemporaryDirectory(prefix="sits-precision-") as folder:
        repository = Path(folder) / "models"
        write(repository, device)
        settings = ExecutorSettings(
            executor_model_repository=str(repository), executor_pool_bytes=0, shm_dir=folder
        )
        with open_executor(settings, CollectorRegistry()) as executor:
            executor.manager.load(PIPELINE).result(LOAD_S)
            yield executor


def model(index: int) -> str:
    return f"step_{index + 1}_{SEQUENCE[index].lower()}"


def write(repository: Path, device: str) -> None:
    torch.manual_seed(1)
    for index, precision in enumerate(SEQUENCE):
        weights = modules.build("perceptron", OPTIONS).state_dict()
        write_model(repository / model(index), step_config(precision, device))
        torch.save(weights, repository / model(index) / "1" / "model.pt")
    write_model(repository / PIPELINE, pipeline_config())


def write_model(folder: Path, config: str) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config)


OPTIONS: Final = {"layers": str(LAYERS), "width": str(WIDTH)}


def step_config(precision: str, device: str) -> str:
    options = {"module": "perceptron", "precision": precision.lower(), "graph_buckets": str(ROWS)}
    options |= {f"module.{key}": value for key, value in OPTIONS.items()}
    parameters = "".join(
        f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}\n'
        for key, value in options.items()
    )
    kind = "KIND_CPU" if device == "cpu" else "KIND_GPU gpus: 0"
    return (
        f'backend: "pytorch" max_batch_size: {ROWS}\n{tensors(precision)}'
        f"instance_group {{ count: 1 kind: {kind} }}\n{parameters}"
    )


def tensors(precision: str) -> str:
    return (
        f'input {{ name: "x" data_type: TYPE_{precision} dims: [ {WIDTH} ] }}\n'
        f'output {{ name: "y" data_type: TYPE_{precision} dims: [ {WIDTH} ] }}\n'
    )


def pipeline_config() -> str:
    names = ["x", *(f"h{index}" for index in range(1, len(SEQUENCE))), "y"]
    steps = "".join(
        f'step {{ model_name: "{model(index)}" model_version: -1\n'
        f'  input_map {{ key: "x" value: "{names[index]}" }}\n'
        f'  output_map {{ key: "y" value: "{names[index + 1]}" }} }}\n'
        for index in range(len(SEQUENCE))
    )
    return (
        f'platform: "ensemble" max_batch_size: {ROWS}\n{tensors("FP32")}'
        f"ensemble_scheduling {{\n{steps}}}\n"
    )


def body() -> int:
    parser = options(__doc__)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="cpu = a dry run")
    given = parser.parse_args()
    found = figures(given.device, quick=given.quick)
    parameters = {
        **machine.describe(), "device": given.device, "sequence": list(SEQUENCE),
        "layers": LAYERS, "width": WIDTH, "rows": ROWS, "runs": QUICK_RUNS if given.quick else RUNS,
    }  # fmt: skip
    return finish("gpu-precision", Report(parameters, found), given)


if __name__ == "__main__":
    main(body)
