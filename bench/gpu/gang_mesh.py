"""A gang model in a whole mesh: the dispatcher chooses its GPUs, requests come through the front
door, and one member is killed.

The executor is told to load the model when all services are up: a load that finds no dispatcher
to ask fails. On the CPU nobody is asked; the members are processes.
"""

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np
import torch
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from gpu.encoders import VOCABULARY, Shape, module, write
from gpu.parallel import ROWS, RUNS, TINY, TOLERANCE, WIDE
from sits_bench.paths import WORK
from sits_bench.processes import family
from sits_bench.system import until
from sits_cli import ports
from sits_cli.mesh import Mesh, Plan
from sits_core.datatypes import Array
from sits_sim.figures import Figure, at_least, at_most, plain

SIZE: Final = 2
MODEL: Final = "parallel"
READY_S, AGAIN_S = 240.0, 120.0


def measure(device: str) -> list[Figure]:
    shape = TINY if device == "cpu" else WIDE
    ids = np.random.default_rng(1).integers(0, VOCABULARY, (ROWS, shape.tokens))
    expected = _expected(shape, device, ids)
    with _started(_models(shape, device)) as (mesh, client):
        took_ms, worst = _served(client, ids, expected)
        failed, again_s, after = _killed(mesh, client, ids, expected)
    return [
        at_most("gang_mesh: largest difference of an output to that of one device", worst, "",
                TOLERANCE),
        plain(f"gang_mesh: a request of {ROWS} rows, {SIZE} members, p50", took_ms, "ms"),
        at_least("gang_mesh: requests that failed for the member that was killed", failed,
                 "requests", 1),
        plain("gang_mesh: from the kill to the next right answer", again_s, "s"),
        at_most("gang_mesh: largest difference of that answer", after, "", TOLERANCE),
    ]  # fmt: skip


def _expected(shape: Shape, device: str, ids: Array) -> Array:
    whole = module(shape, device)
    with torch.inference_mode():
        found: Array = whole(torch.from_numpy(ids).to(device)).float().cpu().numpy()
    del whole
    if device != "cpu":
        torch.cuda.empty_cache()
    return found


def _models(shape: Shape, device: str) -> Path:
    folder = WORK / "repositories" / "gpu-gang"
    shutil.rmtree(folder, ignore_errors=True)
    size = f'parameters {{ key: "gang_size" value: {{ string_value: "{SIZE}" }} }}\n'
    write(folder, MODEL, shape, device, ROWS, size)
    config = folder / MODEL / "config.pbtxt"
    config.write_text(config.read_text().replace('"pytorch"', '"gang"'))
    return folder


@contextmanager
def _started(models: Path) -> Iterator[tuple[Mesh, triton.InferenceServerClient]]:
    book = ports.free(1)
    env = {"SITS_EXECUTOR_LOAD": "none", "SITS_EXECUTOR_GANG_DISPATCHER": book.dispatcher}
    logs = WORK / "logs" / "gpu-gang"
    plan = Plan(book, models=models, log_dir=logs, service_env={"executor": env})
    with Mesh(plan) as mesh, triton.InferenceServerClient(mesh.addresses.front) as client:
        mesh.wait_ready(READY_S)
        until(lambda: _loaded(client), READY_S, f"model {MODEL}")
        yield mesh, client


def _loaded(client: triton.InferenceServerClient) -> bool:
    """Links take a moment, and so do the GPUs until the dispatcher knows them."""
    try:
        client.load_model(MODEL, client_timeout=READY_S)
        return bool(client.is_model_ready(MODEL))
    except InferenceServerException as error:
        print(f"gang_mesh: {error.message()}", flush=True)
        time.sleep(0.5)
        return False


def _served(
    client: triton.InferenceServerClient, ids: Array, expected: Array
) -> tuple[float, float]:
    times, far = [], []
    for _ in range(RUNS):
        began = time.perf_counter()
        found = _ask(client, ids)
        times.append((time.perf_counter() - began) * 1e3)
        far.append(_far(found, expected))
    return median(times), max(far)


def _killed(
    mesh: Mesh, client: triton.InferenceServerClient, ids: Array, expected: Array
) -> tuple[int, float, float]:
    """Requests that failed until one was right, seconds until then, and how right it was."""
    os.kill(_members(mesh)[-1], signal.SIGKILL)
    began, failed = time.monotonic(), 0
    while time.monotonic() - began < AGAIN_S:
        try:
            found = _ask(client, ids)
        except InferenceServerException as error:
            failed += 1
            print(f"gang_mesh: {error.status()} {error.message()}", flush=True)
            time.sleep(0.1)
        else:
            return failed, time.monotonic() - began, _far(found, expected)
    raise RuntimeError(f"no right answer within {AGAIN_S:g} s of the kill")


def _members(mesh: Mesh) -> list[int]:
    """In the order they were started."""
    executor = mesh.pid("executor-0") or 0
    own = [pid for pid in sorted(family(executor)) if b"spawn_main" in _command(pid)]
    if len(own) != SIZE:
        raise RuntimeError(f"{len(own)} members, expected {SIZE}")
    return own


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _ask(client: triton.InferenceServerClient, ids: Array) -> Array:
    given = triton.InferInput("input_ids", list(ids.shape), "INT64")
    given.set_data_from_numpy(ids)
    answer = client.infer(MODEL, [given], client_timeout=AGAIN_S).as_numpy("pooled")
    if answer is None:
        raise RuntimeError("an answer without an output")
    return answer


def _far(found: Array, expected: Array) -> float:
    return float(np.abs(found.astype(np.float32) - expected.astype(np.float32)).max())
