"""What goes wrong on a real GPU, and what becomes of it: captures beside runs, memory that runs
out, a context that is dead (EXE-01, EXE-06)."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

import numpy as np
import torch

from gpu.rig import Setup, backend, fly, mlp
from sits_core.testing import free_port
from sits_executor.backends.pytorch.device import CudaDevice
from sits_executor.backends.streamed import OutOfMemory
from sits_executor.drain import EXIT_DEVICE_LOST
from sits_executor.testing import FakeDispatcher, batch
from sits_sim.figures import Figure, at_least, plain

MEMORY: Final = 1 << 30
LIMIT: Final = 100.0
CONFIG: Final = """
backend: "pytorch" max_batch_size: 8 instance_group { count: 2 kind: KIND_GPU }
input { name: "x" data_type: TYPE_FP32 dims: [4] }
output { name: "y" data_type: TYPE_FP32 dims: [4] }
"""
WAIT_S: Final = 40.0
UNAVAILABLE, INTERNAL = 14, 13


class Asserts(torch.nn.Module):
    """y = x × table[x], where every x is below `LIMIT`: beyond it, the kernel asserts."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.full((int(LIMIT),), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.table[x.long()]


def measure(setup: Setup) -> list[Figure]:
    figures = [_captures_beside_runs(setup)]
    if setup.on_gpu:
        figures += [_out_of_memory(setup), *_dead_context(setup)]
    return figures


def _captures_beside_runs(setup: Setup) -> Figure:
    """One thread runs a model and checks every result while another one captures others."""
    device = setup.open()
    net, other = mlp(setup), mlp(setup, layers=10)
    opened = backend(net, device)
    inputs = net.inputs(8, 1)
    wanted = fly(opened, inputs)["y"].copy()
    over, wrong, runs = threading.Event(), list[str](), 0

    def run() -> None:
        nonlocal runs
        try:
            while not over.is_set():
                if not np.array_equal(fly(opened, inputs)["y"], wanted):
                    wrong.append("a result differs")
                runs += 1
        except Exception as error:  # noqa: BLE001 - whatever a capture did to it
            wrong.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=run)
    thread.start()
    graphs = 0
    try:
        for _ in range(2 if setup.quick else 10):
            second = backend(other, device)
            graphs += second.stats.graphs
            second.close()
    finally:
        over.set()
        thread.join()
        opened.close()
    if wrong:
        raise RuntimeError(f"{len(wrong)} of {runs} runs beside captures: {wrong[0]}")
    return at_least(f"faults: {graphs} captures beside runs of another thread, all right", runs,
                    "runs", 1)  # fmt: skip


def _out_of_memory(setup: Setup) -> Figure:
    """A run over the memory budget fails with its own error; the next, smaller one is right.
    The budget comes on top of what this process holds anyway: cuBLAS keeps a workspace for every
    stream that was ever used."""
    net = mlp(setup, width=4096, layers=2, most=1 << 17)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    opened = backend(net, CudaDevice(0, before + MEMORY), buckets=(1,))
    try:
        try:
            fly(opened, net.inputs(1 << 17, 1))
        except OutOfMemory:
            refused = 1
        else:
            raise RuntimeError("2 GiB were allocated in a budget of 1")
        held = torch.cuda.memory_reserved() - before
        fly(opened, net.inputs(1, 1))
    finally:
        opened.close()
        CudaDevice(0)
    return at_least(f"faults: a run out of memory was refused at {held >> 20} MiB of "
                    f"{MEMORY >> 20} on top of {before >> 20}, the next one ran", refused, "runs",
                    1)  # fmt: skip


def _dead_context(setup: Setup) -> list[Figure]:
    """A model that asserts in the device: a sticky error."""
    folder = setup.folder / "faults"
    version = folder / "m" / "1"
    version.mkdir(parents=True)
    torch.jit.save(torch.jit.script(Asserts()), str(version / "model.pt"))
    (version.parent / "config.pbtxt").write_text(CONFIG)
    return ends_with("faults", folder, "a device assert", LIMIT + 1)


def ends_with(part: str, folder: Path, cause: str, bad: float) -> list[Figure]:
    """An executor of its own serves model m of the repository `folder` until rows of `bad` come:
    four numbers to a row, and ones are fine."""
    address = f"127.0.0.1:{free_port()}"
    environment = {
        **os.environ,
        "SITS_EXECUTOR_BIND": address,
        "SITS_EXECUTOR_METRICS_BIND": f"127.0.0.1:{free_port()}",
        "SITS_EXECUTOR_MODEL_REPOSITORY": str(folder),
    }
    log = folder.with_suffix(".log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "sits_executor"], env=environment, stdout=output, stderr=output
        )
    try:
        return _ended(part, process, address, cause, bad)
    except Exception:
        print(log.read_text()[-4000:], file=sys.stderr)
        raise
    finally:
        process.kill()
        process.wait()


def _ended(
    part: str, process: "subprocess.Popen[bytes]", address: str, cause: str, bad: float
) -> list[Figure]:
    good, last = np.ones((1, 4), np.float32), np.full((1, 4), bad, np.float32)
    with FakeDispatcher(address) as dispatcher:
        dispatcher.wait_ready("m")
        fine = dispatcher.run(batch(1, "m", [good]))
        if fine.result.HasField("error"):
            raise RuntimeError(f"a good batch failed: {fine.result.error.message}")
        started = time.monotonic()
        dispatcher.send(batch(2, "m", [last]))
        for number in range(3, 9):
            dispatcher.send(batch(number, "m", [good]))
        codes = [dispatcher.result(number).result.error.code for number in range(2, 9)]
        print(f"codes after {cause}: {codes}", file=sys.stderr, flush=True)
        dispatcher.wait(lambda: dispatcher.state("m") != "READY", "the withdrawal")
        not_ready_s = time.monotonic() - started
    status = process.wait(WAIT_S)
    if status != EXIT_DEVICE_LOST:
        raise RuntimeError(f"the executor ended with {status}, expected {EXIT_DEVICE_LOST}")
    return [
        at_least(f"{part}: batches not lost after {cause}: failed as the cause, or told "
                 f"to go elsewhere ({codes.count(UNAVAILABLE)} of {len(codes)})",
                 sum(code in (0, INTERNAL, UNAVAILABLE) for code in codes), "batches", len(codes)),
        plain(f"{part}: from {cause} to not ready", not_ready_s * 1e3, "ms"),
        plain(f"{part}: from {cause} to the end of the process",
              (time.monotonic() - started) * 1e3, "ms"),
    ]  # fmt: skip
