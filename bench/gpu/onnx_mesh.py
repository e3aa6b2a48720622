"""ONNX models on a GPU in a whole mesh: two instances each, batches formed from what waits, large
inputs through the payload pool; and what a client hears of a GPU that refuses.

How many rows a second come through is compared with bare loops around sessions in this process:
as many threads as the model has instances, batches as large as the mesh made them.
"""

import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Final

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from gpu.nvml import used_bytes
from gpu.onnx_nets import MIB_FLOATS, Net, far, grows, labels, opened, too_large
from gpu.processes import Usage, watched
from gpu.rig import Setup
from sits_bench import loadgen
from sits_bench.compare import request_file
from sits_bench.copies import counters
from sits_bench.loadgen import Load, Measured
from sits_bench.mesh_system import BEST
from sits_bench.messages import Inference
from sits_bench.paths import WORK
from sits_bench.system import until
from sits_cli import ports
from sits_cli.mesh import Mesh, Plan
from sits_core.datatypes import Array
from sits_sim.figures import Figure, at_least, at_most, plain

INSTANCES: Final = 2
LIMIT: Final = 2 << 30
"""Bytes of GPU memory for each model: the too large one needs more."""
TOO_MUCH: Final = 2500
"""MiB that one run asks for, for the same reason."""
READY_S: Final = 120.0
CLIENTS: Final = 16
REQUESTS: Final = 40
TOLERANCE: Final = 1e-5
KEPT_MIB: Final = 64
ROWS: Final = "max_batch_size: 32\ndynamic_batching { }\n"
LOADS: Final = ((1, 128), (8, 32))
"""Rows of a request, and how many are in flight."""
QUICK: Final = ((2, 4),)


def measure(setup: Setup, known: tuple[Net, ...]) -> list[Figure]:
    with _started(_serving(setup, known), known, {}) as (mesh, client):
        figures = [_right(mesh, client, net) for net in known]
        figures += [_by_reference(mesh, known[-1])]
        for net in known:
            figures += _speed(setup, mesh, net)
        if setup.on_gpu:
            figures += [_given_back(mesh, client, known)]
    if setup.on_gpu:
        limit = {"SITS_EXECUTOR_GPU_MEMORY_BYTES": str(LIMIT)}
        with _started(_refusing(known[0]), known[:1], limit) as (_, client):
            figures += _refused(client)
    return figures


def _right(mesh: Mesh, client: triton.InferenceServerClient, net: Net) -> Figure:
    """Requests of one to eight rows, many at once."""
    before = _ran(mesh, net)

    def one(number: int) -> float:
        given = net.inputs(1 + number % 8, number)
        return far(_ask(client, net.name, given), net.expected(given))

    with ThreadPoolExecutor(CLIENTS) as clients:
        worst = max(clients.map(one, range(REQUESTS)))
    batches, rows = (now - then for now, then in zip(_ran(mesh, net), before, strict=True))
    return at_most(f"onnx mesh: {net.name}, {REQUESTS} requests of {CLIENTS} clients in "
                   f"{batches:.0f} runs of {rows / batches:.1f} rows: largest difference to the "
                   "CPU provider", worst, "of 1", TOLERANCE)  # fmt: skip


def _by_reference(mesh: Mesh, net: Net) -> Figure:
    size = net.inputs(1, 1).nbytes
    before = _copies(mesh)
    _closed(mesh, net, 1, 8, 1.0)
    copies = _copies(mesh) - before
    return at_most(
        f"onnx mesh: copies of an input of {size} bytes in the executor", copies, "copies", 0
    )


def _copies(mesh: Mesh) -> float:
    """Of inputs, counted by the executor; the small ones have come inline before."""
    metrics = [address for _, address in mesh.addresses.executors]
    counted = counters(metrics, r'sits_payload_copies_total\{.*stage="input"')
    if not counted:
        raise RuntimeError("no copies are counted, not even of small inputs")
    return counted


def _speed(setup: Setup, mesh: Mesh, net: Net) -> list[Figure]:
    figures: list[Figure] = []
    for rows, in_flight in LOADS if setup.on_gpu else QUICK:
        before = _ran(mesh, net)
        found, usage = _closed(mesh, net, rows, in_flight, 1.0 if setup.quick else 4.0)
        batches, ran = (now - then for now, then in zip(_ran(mesh, net), before, strict=True))
        size = max(1, round(ran / max(1.0, batches)))
        alone = _bare(setup, net, size, 1)
        bare = _bare(setup, net, size, INSTANCES)
        name = f"onnx mesh: {net.name}, requests of {rows}, {in_flight} in flight"
        figures += [
            _against(f"{name}: rows a second against a bare loop of {INSTANCES} threads, batches "
                     f"of {size}", found.per_s * rows, bare),
            _against(f"{name}: the same against one thread", found.per_s * rows, alone),
            plain(f"{name}: p50 (p99 {found.answered.p99:.2f} ms, CPU {_cpu(usage)}, GPU busy "
                  f"{_busy(usage):.2f})", found.answered.p50, "ms"),
        ]  # fmt: skip
        if found.failed:
            raise RuntimeError(f"{found.failed} requests failed, first: {found.first_error}")
    return figures


def _against(name: str, value: float, reference: float) -> Figure:
    return Figure(name, value, "rows/s", reference, value / reference)


def _cpu(usage: Usage) -> str:
    return ", ".join(f"{name} {cores:.2f}" for name, cores in sorted(usage.services.items()))


def _busy(usage: Usage) -> float:
    return usage.gpus[0] if usage.gpus else 0.0


def _closed(
    mesh: Mesh, net: Net, rows: int, in_flight: int, seconds: float
) -> tuple[Measured, Usage]:
    inferences = [Inference(net.name, {"INPUT": net.inputs(rows, seed)}) for seed in range(8)]
    requests = request_file(f"gpu-onnx-{net.name}-{rows}", inferences)
    load = Load(requests, in_flight=in_flight, connections=8, warm_up_s=1.0, duration_s=seconds)
    pids = {name: pid for name in mesh.names() if (pid := mesh.pid(name)) is not None}
    with watched(pids) as usage:
        found = loadgen.run(load, mesh.addresses.front)
    return found, usage


def _bare(setup: Setup, net: Net, rows: int, threads: int) -> float:
    """Rows a second."""
    backend = opened(net.file, 0 if setup.on_gpu else None)
    session = backend._session  # type: ignore[attr-defined]
    given = {"INPUT": net.inputs(rows, 1)}
    counts, seconds = [0] * threads, 0.3 if setup.quick else 2.0
    for _ in range(3):
        session.run(["OUTPUT"], given)
    ends = time.perf_counter() + seconds

    def loop(number: int) -> None:
        while time.perf_counter() < ends:
            session.run(["OUTPUT"], given)
            counts[number] += 1

    loops = [Thread(target=loop, args=(number,)) for number in range(threads)]
    for thread in loops:
        thread.start()
    for thread in loops:
        thread.join()
    backend.close()
    return sum(counts) * rows / seconds


def _refused(client: triton.InferenceServerClient) -> list[Figure]:
    index = client.get_model_repository_index().models
    reasons = {entry.name: entry.reason for entry in index if entry.reason}
    print(f"onnx mesh: {reasons}", file=sys.stderr, flush=True)
    told = ("has no memory left for the model" in reasons.get("large", "")) + (
        "none of its operators runs on one" in reasons.get("labels", "")
    )
    before = _sum(client, 10)
    status = _status(client, TOO_MUCH)
    after = _sum(client, 10)
    return [
        at_least("onnx mesh: models that the GPU refuses are unavailable and say why, the others "
                 "serve", told, "models", 2),
        at_least(f"onnx mesh: a run over the limit is {status}, the next one is right",
                 int("RESOURCE_EXHAUSTED" in status and before == after == 10.0 * MIB_FLOATS),
                 "runs", 1),
    ]  # fmt: skip


def _sum(client: triton.InferenceServerClient, mib: int) -> float:
    x, n = np.ones(MIB_FLOATS, np.float32), np.array([mib])
    inputs = [_input("x", x, "FP32"), _input("n", n, "INT64")]
    answer = client.infer("grows", inputs, client_timeout=READY_S).as_numpy("y")
    return float("nan") if answer is None else float(answer.item())


def _status(client: triton.InferenceServerClient, mib: int) -> str:
    try:
        return f"answered: {_sum(client, mib)}"
    except InferenceServerException as error:
        return f"{error.status()}: {error.message()}"


def _given_back(mesh: Mesh, client: triton.InferenceServerClient, known: tuple[Net, ...]) -> Figure:
    """By what NVML counts for the executor's process; the models serve again after each load."""
    pid, left = mesh.pid("executor-0") or 0, []
    served = used_bytes(pid) >> 20
    for _ in range(3):
        for net in known:
            client.unload_model(net.name, client_timeout=READY_S)
        until(lambda: not any(_is_ready(client, net.name) for net in known), READY_S, "unload")
        time.sleep(1.0)
        left.append(used_bytes(pid) >> 20)
        for net in known:
            client.load_model(net.name, client_timeout=READY_S)
            until(lambda: _is_ready(client, net.name), READY_S, "load")  # noqa: B023 - at once
            given = net.inputs(8, 1)
            if far(_ask(client, net.name, given), net.expected(given)) > TOLERANCE:
                raise RuntimeError(f"{net.name} answers wrongly after a load")
    return at_most(f"onnx mesh: GPU memory that the executor keeps when {len(known)} models are "
                   f"unloaded twice more ({served} MiB while they served, {left[0]} after the "
                   "first time)", left[-1] - left[0], "MiB", KEPT_MIB)  # fmt: skip


def _ran(mesh: Mesh, net: Net) -> tuple[float, float]:
    """Batches and rows of the model so far."""
    metrics = [address for _, address in mesh.addresses.executors]
    label = rf'\{{model="{net.name}"\}}'
    return (
        counters(metrics, f"sits_executor_batches_total{label}") or 0.0,
        counters(metrics, f"sits_executor_rows_total{label}") or 0.0,
    )


def _input(name: str, array: Array, datatype: str) -> triton.InferInput:
    given = triton.InferInput(name, list(array.shape), datatype)
    given.set_data_from_numpy(array)
    return given


def _ask(client: triton.InferenceServerClient, model: str, array: Array) -> Array:
    datatype = "INT64" if array.dtype == np.int64 else "FP32"
    answer = client.infer(model, [_input("INPUT", array, datatype)], client_timeout=READY_S)
    found = answer.as_numpy("OUTPUT")
    if found is None:
        raise RuntimeError("an answer without an output")
    return found


def _serving(setup: Setup, known: tuple[Net, ...]) -> Path:
    folder = _fresh("gpu-onnx")
    for net in known:
        _write(folder, net.name, net.file.read_bytes(), _group(on_gpu=setup.on_gpu) + ROWS)
    return folder


def _refusing(fine: Net) -> Path:
    """One that serves, one that grows, and two that cannot load."""
    folder = _fresh("gpu-onnx-refused")
    group = _group(on_gpu=True)
    _write(folder, fine.name, fine.file.read_bytes(), group + ROWS)
    _write(folder, "grows", grows(), group)
    _write(folder, "labels", labels(), group)
    version = _write(folder, "large", b"", group)
    (version / "model.onnx").write_bytes(too_large(version))
    return folder


def _fresh(name: str) -> Path:
    folder = WORK / "repositories" / name
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def _group(*, on_gpu: bool) -> str:
    kind = "KIND_GPU" if on_gpu else "KIND_CPU"
    return f"instance_group {{ count: {INSTANCES} kind: {kind} }}\n"


def _write(folder: Path, name: str, content: bytes, config: str) -> Path:
    version = folder / name / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(content)
    (version.parent / "config.pbtxt").write_text(config)
    return version


@contextmanager
def _started(
    models: Path, known: tuple[Net, ...], limit: Mapping[str, str]
) -> Iterator[tuple[Mesh, triton.InferenceServerClient]]:
    logs = WORK / "logs" / models.name
    plan = Plan(ports.free(1), models=models, log_dir=logs, env={**BEST, **limit})
    with Mesh(plan) as mesh, triton.InferenceServerClient(mesh.addresses.front) as client:
        mesh.wait_ready(READY_S)
        until(lambda: all(_is_ready(client, net.name) for net in known), READY_S, "models")
        yield mesh, client


def _is_ready(client: triton.InferenceServerClient, name: str) -> bool:
    try:
        return bool(client.is_model_ready(name))
    except InferenceServerException:
        return False
