"""A gang model: one encoder, tensor parallel over 1, 2, 4 and 8 GPUs, through the executor's
own gang backend, on the gangs that the dispatcher would choose."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np
import torch
from google.protobuf import text_format

from gpu.encoders import VOCABULARY, Shape, config, module
from sits_executor.backends.gang.backend import GangBackend
from sits_executor.backends.gang.member import Job
from sits_protos.oip.model_config_pb2 import ModelConfig
from sits_sim.figures import Figure, at_most, higher

WIDE: Final = Shape(layers=3, width=4096, heads=32, tokens=512)
TINY: Final = Shape(layers=2, width=64, heads=8, tokens=8)
ROWS, RUNS = 16, 20
TOLERANCE: Final = 0.02
"""Half precision, sums in another order; outputs are between -1 and 1."""

Choose = Callable[[int], Sequence[str]]
"""The devices of a gang of so many; empty = processes on the CPU."""


def measure(folder: Path, device: str, sizes: Sequence[int], choose: Choose) -> list[Figure]:
    shape = TINY if device == "cpu" else WIDE
    whole = module(shape, device)
    torch.save(whole.state_dict(), folder / "model.pt")
    ids = np.random.default_rng(1).integers(0, VOCABULARY, (ROWS, shape.tokens))
    expected, alone_ms = _alone(whole, torch.from_numpy(ids).to(device))
    del whole
    if device != "cpu":
        torch.cuda.empty_cache()
    figures = []
    for size in sizes:
        found, took_ms, started_s = _gang(folder, shape, device, size, choose(size), ids)
        far = float(np.abs(found.astype(np.float32) - expected).max())
        name = f"parallel: {size} GPUs, {shape.width} wide, {ROWS} x {shape.tokens} tokens"
        figures += [
            higher(f"{name}, a run against one GPU alone", 1 / took_ms, "1/ms", 1 / alone_ms, 1.0),
            Figure(f"{name}, time", took_ms, "ms", alone_ms, alone_ms / took_ms),
            at_most(f"{name}, largest difference of the output", far, "", TOLERANCE),
            Figure(f"{name}, start of the gang", started_s, "s"),
        ]
    return figures


def _alone(whole: torch.nn.Module, ids: torch.Tensor) -> tuple[np.ndarray, float]:
    """Eager on one device, inputs there already, output brought back."""
    times = []
    with torch.inference_mode():
        for _ in range(RUNS + 3):
            started = time.perf_counter()
            output = whole(ids).cpu()
            times.append(time.perf_counter() - started)
    return output.float().numpy(), median(times[3:]) * 1e3


def _gang(
    folder: Path, shape: Shape, device: str, size: int, devices: Sequence[str], ids: np.ndarray
) -> tuple[np.ndarray, float, float]:
    """Output, milliseconds of a run through the backend, and seconds until it was ready."""
    wanted = text_format.Parse(config("parallel", shape, device, ROWS), ModelConfig())
    job = Job(
        "parallel", str(folder), "model.pt", wanted.SerializeToString(), tuple(devices), size, 4, ""
    )
    started = time.perf_counter()
    gang = GangBackend(job)
    started_s = time.perf_counter() - started
    times = []
    try:
        for _ in range(RUNS + 3):
            began = time.perf_counter()
            output = gang.run({"input_ids": ids}, {})["pooled"]
            times.append(time.perf_counter() - began)
    finally:
        gang.close()
    return output, median(times[3:]) * 1e3, started_s
