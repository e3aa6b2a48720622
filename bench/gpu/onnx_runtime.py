"""ONNX Runtime's CUDA provider through the executor's own backend, and then in a whole mesh: is it
right, does it run there, what does it refuse, and what does the mesh cost."""

import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
import onnxruntime
import torch

from gpu import faults, onnx_mesh
from gpu.nvml import used_bytes
from gpu.onnx_nets import (
    MIB_FLOATS,
    Net,
    far,
    grows,
    nets,
    opened,
    reverses,
    too_large,
)
from gpu.rig import Setup
from sits_executor.backends.base import Backend, LoadError
from sits_executor.backends.streamed import DeviceLost, OutOfMemory
from sits_sim.figures import Figure, at_least, at_most, plain

TOLERANCE: Final = 1e-5
OF_TF32: Final = 2e-3
ROWS: Final = (1, 3, 8, 32)
CYCLES: Final = 4
KEPT_MIB: Final = 8
LEFT: Final = 1 << 30
"""Bytes that are free on a full GPU."""
TOO_MUCH: Final = 2000
"""MiB that a run asks for then."""
COUNTS: Final = 40


def measure(setup: Setup) -> list[Figure]:
    folder = setup.folder / "onnx"
    folder.mkdir()
    known = nets(folder)
    gpu = 0 if setup.on_gpu else None
    figures = [
        at_least(f"onnx: ONNX Runtime {onnxruntime.__version__} with CUDA",
                 int(not setup.on_gpu or _has_cuda()), "", 1),
        *_right(known, gpu),
        *_row_counts(known[-1], gpu, setup.times(COUNTS)),
    ]  # fmt: skip
    if setup.on_gpu:
        figures += [_given_back(known), *_refused(folder), _lost(known[0]), *_ends(folder)]
    return figures + onnx_mesh.measure(setup, known)


def _has_cuda() -> bool:
    return "CUDAExecutionProvider" in onnxruntime.get_available_providers()


def _right(known: tuple[Net, ...], gpu: int | None) -> list[Figure]:
    rows = ROWS[:-1] if gpu is None else ROWS
    return [
        figure
        for net in known
        for figure in (
            at_most(f"onnx: {net.name}, largest difference to the CPU provider",
                    _difference(net, gpu, rows), "of 1", TOLERANCE),
            at_most(f"onnx: {net.name}, the same with TF32",
                    _difference(net, gpu, rows, tf32="true"), "of 1", OF_TF32),
        )
    ]  # fmt: skip


def _difference(net: Net, gpu: int | None, rows: tuple[int, ...], **parameters: str) -> float:
    backend = opened(net.file, gpu, **parameters)
    try:
        return max(
            far(np.asarray(backend.run({"INPUT": given}, {})["OUTPUT"]), net.expected(given))
            for given in (net.inputs(count, seed) for seed, count in enumerate(rows))
        )
    finally:
        backend.close()


def _row_counts(image: Net, gpu: int | None, times: int) -> list[Figure]:
    """Batches of dynamic batching, each with another number of rows than the one before: cuDNN
    plans anew for every change."""
    rows = [int(count) for count in np.random.default_rng(1).integers(17, 33, times)]
    varied = _mean_ms(image, gpu, rows)
    return [
        plain("onnx: image, a run of 32 rows after one of 32", _mean_ms(image, gpu, [32] * times),
              "ms"),
        plain(f"onnx: image, a run of {min(rows)} to {max(rows)} rows after one of another number",
              varied, "ms"),
    ]  # fmt: skip


def _mean_ms(image: Net, gpu: int | None, rows: list[int]) -> float:
    """Of runs whose sizes all came before."""
    backend = opened(image.file, gpu)
    inputs = {count: image.inputs(count, count) for count in {*rows}}
    for given in inputs.values():
        backend.run({"INPUT": given}, {})
    began = time.perf_counter()
    for count in rows:
        backend.run({"INPUT": inputs[count]}, {})
    taken = time.perf_counter() - began
    backend.close()
    return taken * 1e3 / len(rows)


def _given_back(known: tuple[Net, ...]) -> Figure:
    """The first time keeps what the process has once: context, kernels, cuBLAS, cuDNN."""
    left, held = [], 0
    for _ in range(CYCLES):
        backends = [opened(net.file, 0) for net in known]
        for net, backend in zip(known, backends, strict=True):
            backend.run({"INPUT": net.inputs(32, 1)}, {})
        held = used_bytes() >> 20
        for backend in backends:
            backend.close()
        left.append(used_bytes() >> 20)
    kept = left[-1] - left[0]
    return at_most(f"onnx: GPU memory that {len(known)} models keep when loaded, run and closed "
                   f"{CYCLES - 1} more times ({held} MiB with them, {left[0]} without)", kept,
                   "MiB", KEPT_MIB)  # fmt: skip


def _refused(folder: Path) -> list[Figure]:
    """On a GPU that is full but for 1 GiB: a model that does not fit, and a run that does not."""
    large, small = folder / "large.onnx", folder / "grows.onnx"
    large.write_bytes(too_large(folder))
    small.write_bytes(grows())
    torch.cuda.empty_cache()
    backend = opened(small, 0)
    _sum(backend, 1)
    ballast = torch.empty(torch.cuda.mem_get_info()[0] - LEFT, dtype=torch.uint8, device="cuda")
    try:
        cause = _load_error(large)
        before = _sum(backend, 10)
        refused = _run_is_refused(backend, TOO_MUCH)
        after = _sum(backend, 10)
    finally:
        backend.close()
        del ballast
        torch.cuda.empty_cache()
    return [
        at_least(f"onnx: a model of 3 GiB on a full GPU fails to load: {cause}",
                 int("has no memory left for the model" in cause), "loads", 1),
        at_least("onnx: a run without memory is OUT_OF_MEMORY, the next one is right",
                 int(refused and before == after == 10 * MIB_FLOATS), "runs", 1),
    ]  # fmt: skip


def _load_error(file: Path) -> str:
    try:
        opened(file, 0).close()
    except LoadError as error:
        return str(error)
    return "it loaded"


def _sum(backend: Backend, mib: int) -> float:
    given = {"x": np.ones(MIB_FLOATS, np.float32), "n": np.array([mib])}
    return float(backend.run(given, {})["y"].item())


def _run_is_refused(backend: Backend, mib: int) -> bool:
    try:
        _sum(backend, mib)
    except OutOfMemory:
        return True
    return False


def _lost(net: Net) -> Figure:
    """A context that something else in the process broke, as ONNX Runtime words it."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as processes:
        said = processes.submit(_run_on_a_broken_device, net).result()
    print(f"onnx: {said}", file=sys.stderr, flush=True)
    return at_least(f"onnx: on a broken CUDA context: {said[:120]}",
                    int(said.startswith("DeviceLost")), "runs", 1)  # fmt: skip


def _run_on_a_broken_device(net: Net) -> str:
    backend = opened(net.file, 0)
    given = {"INPUT": net.inputs(2, 1)}
    backend.run(given, {})
    with suppress(RuntimeError):
        torch.zeros(4, device="cuda")[torch.full((1,), 99, device="cuda")].sum().item()
    try:
        backend.run(given, {})
    except DeviceLost as error:
        return f"DeviceLost: {error.message}"
    except Exception as error:  # noqa: BLE001 - what else it may be is told
        return f"{type(error).__name__}: {error}"
    return "it ran"


def _ends(folder: Path) -> list[Figure]:
    """An input that breaks the context from inside ONNX Runtime, in an executor of its own."""
    version = folder / "lost" / "m" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(reverses())
    (version.parent / "config.pbtxt").write_text(
        "max_batch_size: 8\ninstance_group { count: 2 kind: KIND_GPU }\n"
    )
    return faults.ends_with("onnx", folder / "lost", "a bad ReverseSequence", float(1 << 30))
