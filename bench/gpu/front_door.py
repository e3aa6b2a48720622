"""The whole mesh on one GPU, load through the front door (figure 5).

A BERT-base-sized encoder, half precision, token ids INT64 [rows, 128] in. The knee is the least
load in flight that reaches 95 % of the most samples a second; there the GPU's busy share is read.
At 70 % of that, requests arrive at random times (Poisson), and latency is read; time without an
answer that a few runs do not explain is told, with how the machine was meanwhile (`sits bench
stalls`). Requests of eight samples and of one: a front door that gets eight times as many requests
needs more processes.
"""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from gpu.encoders import VOCABULARY, Shape, config, module
from gpu.processes import Usage, watched
from gpu.rig import Setup, backend, bert, fly, median_us
from sits_bench import loadgen
from sits_bench.compare import request_file
from sits_bench.loadgen import Load, Measured, own_stalls
from sits_bench.messages import Inference
from sits_bench.paths import WORK
from sits_bench.system import until
from sits_cli import ports
from sits_cli.mesh import Mesh, Plan
from sits_sim.figures import Figure, at_least, at_most, higher, plain
from sits_sim.load import poisson

BERT: Final = Shape(layers=12, width=768, heads=12, tokens=128)
TINY: Final = Shape(layers=2, width=64, heads=4, tokens=16)
MAX_BATCH: Final = 32
STREAMS: Final = 2
CLIENTS: Final = 16
CLIENT_BAR: Final = 2.35
BUSY: Final = 0.924
OF_BARE: Final = 0.9
TAIL: Final = 2.0
LOAD: Final = 0.7
AT_THE_KNEE: Final = 0.95
READY_S: Final = 120.0
STALL_MS: Final = 20.0
"""Several runs of a full batch on the GPU."""


@dataclass(frozen=True, slots=True)
class Request:
    """How many samples a request has, in how many requests load is offered, and how many
    processes of the front door that takes: no more, since each forms batches of its own."""

    rows: int
    in_flight: tuple[int, ...]
    fronts: int


FULL: Final = (Request(8, (16, 32, 64), 1), Request(1, (128, 256, 512), 4))
QUICK: Final = (Request(2, (2, 4), 1),)


@dataclass(frozen=True, slots=True)
class Point:
    in_flight: int
    found: Measured
    usage: Usage


def measure(setup: Setup) -> list[Figure]:
    bare = bare_per_s(setup)
    figures = [plain(f"mesh: bare graph replay, batch {MAX_BATCH}", bare, "samples/s")]
    models = _models(setup)
    for number, request in enumerate(FULL if setup.on_gpu else QUICK):
        with started(models, request.fronts) as mesh:
            if number == 0:
                figures += _clients(setup, mesh)
            figures += _of(setup, mesh, request, bare)
    return figures


def bare_per_s(setup: Setup) -> float:
    """Replays of the largest bucket one after the other, without copies."""
    opened = backend(bert(setup, MAX_BATCH), setup.open(), buckets=(MAX_BATCH,))
    try:
        fly(opened, bert(setup, MAX_BATCH).inputs(MAX_BATCH, 1))
        (captured,) = opened._slots.slots[0].graphs.values()
        stream = opened._slots.slots[0].stream

        def several() -> None:
            opened.device.use(stream)
            for _ in range(10):
                captured.graph.replay()
            opened.device.wait(stream)

        return MAX_BATCH * 10 / median_us(several, setup.times(60)) * 1e6
    finally:
        opened.close()


def _of(setup: Setup, mesh: Mesh, request: Request, bare: float) -> list[Figure]:
    points = [_closed(setup, mesh, request, in_flight) for in_flight in request.in_flight]
    most = max(point.found.per_s for point in points)
    knee = next(point for point in points if point.found.per_s >= AT_THE_KNEE * most)
    calm, _ = _load(setup, mesh, request, _open(setup, request, LOAD * most))
    name = f"mesh, requests of {request.rows}"
    gpu = sum(knee.usage.gpus) / len(knee.usage.gpus) if knee.usage.gpus else 0.0
    ratio = calm.answered.p99 / calm.answered.p50
    return [
        at_least(f"{name}: GPU busy at the knee, {knee.in_flight} in flight", gpu, "of 1", BUSY),
        higher(f"{name}: samples a second against bare replay", most * request.rows, "samples/s",
               bare, OF_BARE),
        at_most(f"{name}: p99 over p50 at {LOAD:.0%} of that, random arrivals", ratio, "x", TAIL),
        plain(f"{name}: p50 at {LOAD:.0%}", calm.answered.p50, "ms"),
        plain(f"{name}: p99 at {LOAD:.0%}", calm.answered.p99, "ms"),
        *_stalls(f"{name}, at {LOAD:.0%}", calm),
        plain(f"{name}: requests that failed", calm.failed + sum(p.found.failed for p in points),
              "requests"),
        *(plain(f"{name}: samples a second, {p.in_flight} in flight, p50 "
                f"{p.found.answered.p50:.2f} p99 {p.found.answered.p99:.2f} ms, CPU "
                f"{_cpu(p.usage)}", p.found.per_s * request.rows, "samples/s") for p in points),
    ]  # fmt: skip


def _stalls(name: str, found: Measured) -> list[Figure]:
    longest = max(found.stalls, key=lambda stall: stall.ms, default=None)
    figures = [
        plain(f"{name}: stalls while the machine ran on", own_stalls(found.stalls), "stalls"),
        plain(f"{name}: stalls in all", len(found.stalls), "stalls"),
        plain(f"{name}: how late the generator was, at most", found.lag.max, "ms"),
    ]
    if longest is not None:
        figures.append(
            plain(f"{name}: longest stall, from {longest.at_s:.2f} s on, {longest.open} open; the "
                  f"machine took {longest.slowed:.1f} times as long as usual for the same, and did "
                  f"not run for {longest.apart_ms:.1f} ms", longest.ms, "ms")
        )  # fmt: skip
    return figures


def _clients(setup: Setup, mesh: Mesh) -> list[Figure]:
    """16 clients against one, each with one sample under way; what waits is run as one batch."""
    one = Request(1, (), 1)
    alone = _closed(setup, mesh, one, 1).found
    together = _closed(setup, mesh, one, CLIENTS).found
    return [
        higher(f"mesh: {CLIENTS} clients at once against one at a time", together.per_s, "req/s",
               alone.per_s, CLIENT_BAR),
        plain("mesh: one at a time, p50", alone.answered.p50, "ms"),
        plain(f"mesh: {CLIENTS} at once, p50", together.answered.p50, "ms"),
    ]  # fmt: skip


def _cpu(usage: Usage) -> str:
    return ", ".join(f"{name} {cores:.2f}" for name, cores in sorted(usage.services.items()))


def _closed(setup: Setup, mesh: Mesh, request: Request, in_flight: int) -> Point:
    load = Load(
        _requests(setup, request),
        in_flight=in_flight,
        connections=min(8, in_flight),
        warm_up_s=1.0 if setup.on_gpu else 0.5,
        duration_s=_seconds(setup),
        drain_s=10.0,
    )
    found, usage = _load(setup, mesh, request, load)
    return Point(in_flight, found, usage)


def _open(setup: Setup, request: Request, per_s: float) -> Load:
    seconds = _seconds(setup) + 1.0
    at_s = poisson(per_s, seconds, np.random.default_rng(1))
    return Load(
        _requests(setup, request),
        at_s=at_s,
        connections=8,
        warm_up_s=1.0,
        duration_s=_seconds(setup),
        drain_s=10.0,
        stall_ms=STALL_MS,
    )


def _seconds(setup: Setup) -> float:
    return 1.0 if setup.quick else 4.0


def _load(setup: Setup, mesh: Mesh, request: Request, load: Load) -> tuple[Measured, Usage]:
    pids = {name: pid for name in mesh.names() if (pid := mesh.pid(name)) is not None}
    with watched(pids) as usage:
        found = loadgen.run(load, mesh.addresses.front)
    if found.failed:
        print(f"{found.failed} requests failed, first: {found.first_error}", flush=True)
    return found, usage


def _shape(setup: Setup) -> Shape:
    return BERT if setup.on_gpu else TINY


def _requests(setup: Setup, request: Request) -> Path:
    tokens = _shape(setup).tokens
    ids = np.random.default_rng(1).integers(0, VOCABULARY, (16, request.rows, tokens))
    inferences = [Inference("bert", {"input_ids": rows}) for rows in ids]
    return request_file(f"gpu-bert-{request.rows}", inferences)


def _models(setup: Setup) -> Path:
    from safetensors.torch import save_file

    folder = WORK / "repositories" / "gpu-bert"
    shutil.rmtree(folder, ignore_errors=True)
    version = folder / "bert" / "1"
    version.mkdir(parents=True)
    shape, device = _shape(setup), setup.device
    save_file(module(shape, device).cpu().state_dict(), version / "model.safetensors")
    text = config("bert", shape, device, MAX_BATCH, "dynamic_batching { }\n")
    (folder / "bert" / "config.pbtxt").write_text(text.replace("count: 1", f"count: {STREAMS}"))
    return folder


@contextmanager
def started(models: Path, fronts: int) -> Iterator[Mesh]:
    environment = {
        "SITS_PREPROCESS_TRANSPORT": "native",
        "SITS_PREPROCESS_PROCESSES": str(fronts),
    }
    plan = Plan(ports.free(1), models=models, log_dir=WORK / "logs" / "gpu-bert", env=environment)
    with Mesh(plan) as mesh:
        mesh.wait_ready(READY_S)
        with triton.InferenceServerClient(mesh.addresses.front) as client:
            until(lambda: _is_ready(client), READY_S, "model bert")
        time.sleep(0.5)
        yield mesh


def _is_ready(client: triton.InferenceServerClient) -> bool:
    try:
        return bool(client.is_model_ready("bert"))
    except InferenceServerException:
        return False
