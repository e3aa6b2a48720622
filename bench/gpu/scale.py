"""The mesh with one executor a GPU: requests a second of N executors against those of one.

Two meshes one after the other, with as many requests in flight and as many front door processes
for each executor. Clients and front doors run on the same host.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple
from urllib.request import urlopen

import numpy as np
import tritonclient.grpc as triton
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException

from gpu.encoders import VOCABULARY, Shape, write
from gpu.processes import Usage, watched
from sits_bench import loadgen
from sits_bench.compare import request_file
from sits_bench.loadgen import Load, Measured
from sits_bench.messages import Inference
from sits_bench.paths import WORK
from sits_bench.system import until
from sits_cli import ports
from sits_cli.mesh import Mesh, Plan
from sits_sim.figures import Figure, at_most, higher, plain

LEAST: Final = 0.9375
"""Of N times one: 7.5 of 8, 3.75 of 4."""
SAME_P99: Final = 1.1
MAX_BATCH: Final = 32
READY_S: Final = 240.0


@dataclass(frozen=True, slots=True)
class Kind:
    """A model and how hard it is driven: requests in flight for each executor."""

    name: str
    shape: Shape
    in_flight: int


HEAVY: Final = Kind("heavy", Shape(layers=24, width=1024, heads=16, tokens=512), 256)
LIGHT: Final = Kind("light", Shape(layers=12, width=768, heads=12, tokens=128), 512)
TINY: Final = Kind("tiny", Shape(layers=2, width=64, heads=4, tokens=16), 8)


@dataclass(frozen=True, slots=True)
class Settings:
    """`devices` as topology names them; one executor each. Empty = CPU executors, `count`."""

    devices: Sequence[str]
    count: int
    kinds: Sequence[Kind]
    fronts: int
    """Front door processes for each executor."""
    executors_a_dispatcher: int = 2
    warm_up_s: float = 2.0
    duration_s: float = 8.0
    env: Mapping[str, str] = field(default_factory=dict)


class Found(NamedTuple):
    """One load: what came, what it took, and rows a batch."""

    measured: Measured
    usage: Usage
    rows_per_batch: float


def measure(settings: Settings) -> tuple[list[Figure], list[dict[str, object]]]:
    """Figures, and every run for the kept results."""
    device = "cuda" if settings.devices else "cpu"
    models = WORK / "repositories" / "gpu-scale"
    shutil.rmtree(models, ignore_errors=True)
    for kind in settings.kinds:
        write(models, kind.name, kind.shape, device, MAX_BATCH, "dynamic_batching { }\n")
    figures: list[Figure] = []
    runs: list[dict[str, object]] = []
    many, one = (_all(settings, models, executors) for executors in (settings.count, 1))
    for kind in settings.kinds:
        figures += _figures(kind, settings.count, many[kind.name], one[kind.name])
        runs += [_row(kind, settings.count, many[kind.name]), _row(kind, 1, one[kind.name])]
    return figures, runs


def _all(settings: Settings, models: Path, executors: int) -> dict[str, "Found"]:
    """Every model's load on a mesh of so many executors."""
    with started(settings, models, executors) as mesh:
        return {kind.name: _load(mesh, settings, kind, executors) for kind in settings.kinds}


@contextmanager
def started(settings: Settings, models: Path, executors: int) -> Iterator[Mesh]:
    dispatchers = max(1, executors // settings.executors_a_dispatcher)
    book = ports.free(executors)
    more = [tuple(map(_loopback, ports.free_ports(2))) for _ in range(1, dispatchers)]
    plan = Plan(
        book,
        models=models,
        log_dir=WORK / "logs" / f"gpu-scale-{executors}",
        env={
            "SITS_PREPROCESS_TRANSPORT": "native",
            "SITS_PREPROCESS_PROCESSES": str(settings.fronts * executors),
            **settings.env,
        },
        service_env={
            "preprocess": {
                "SITS_PREPROCESS_DISPATCHERS": ",".join([book.dispatcher, *(m[0] for m in more)])
            },
            **{
                f"executor-{number}": _own(number, device)
                for number, device in enumerate(settings.devices[:executors])
            },
        },
        more={
            f"dispatcher-{number}": {
                "SITS_DISPATCHER_BIND": bind,
                "SITS_DISPATCHER_ADMIN_BIND": admin,
            }
            for number, (bind, admin) in enumerate(more, start=1)
        },
    )
    with Mesh(plan) as mesh:
        mesh.wait_ready(READY_S)
        until(_ready(mesh, settings), READY_S, "models")
        yield mesh


def _loopback(port: int) -> str:
    return f"127.0.0.1:{port}"


def _own(number: int, device: str) -> dict[str, str]:
    """Devices are in CUDA's order. A card whose UUID is not told has no name to give."""
    named = {"SITS_EXECUTOR_DEVICE": device} if device.startswith("GPU-") else {}
    return {**named, "CUDA_VISIBLE_DEVICES": str(number)}


def _ready(mesh: Mesh, settings: Settings) -> Callable[[], bool]:
    def ready() -> bool:
        try:
            with triton.InferenceServerClient(mesh.addresses.front) as client:
                return all(client.is_model_ready(kind.name) for kind in settings.kinds)
        except InferenceServerException:
            return False

    return ready


def _load(mesh: Mesh, settings: Settings, kind: Kind, executors: int) -> Found:
    load = Load(
        _requests(kind),
        in_flight=kind.in_flight * executors,
        connections=min(kind.in_flight * executors, 32 * settings.fronts * executors),
        warm_up_s=settings.warm_up_s,
        duration_s=settings.duration_s,
        drain_s=10.0,
    )
    # Spread over many connections, since the kernel deals them out to the front doors by chance.
    pids = {name: pid for name in mesh.names() if (pid := mesh.pid(name)) is not None}
    before = _counted(mesh)
    with watched(pids) as usage:
        measured = loadgen.run(load, mesh.addresses.front)
    rows, batches = (now - then for now, then in zip(_counted(mesh), before, strict=True))
    return Found(measured, usage, rows / batches if batches else 0.0)


def _counted(mesh: Mesh) -> tuple[float, float]:
    """Rows and batches that all executors have run."""
    pages = [urlopen(f"http://{metrics}/metrics", timeout=5).read().decode()
             for _, metrics in mesh.addresses.executors]  # fmt: skip
    samples = [s for page in pages for f in text_string_to_metric_families(page) for s in f.samples]
    rows, batches = "sits_executor_rows_total", "sits_executor_batches_total"
    return tuple(sum(s.value for s in samples if s.name == name) for name in (rows, batches))  # type: ignore[return-value] # of two


def _requests(kind: Kind) -> Path:
    ids = np.random.default_rng(1).integers(0, VOCABULARY, (16, 1, kind.shape.tokens))
    inferences = [Inference(kind.name, {"input_ids": rows}) for rows in ids]
    return request_file(f"gpu-{kind.name}", inferences)


def _figures(kind: Kind, count: int, all_: Found, alone: Found) -> list[Figure]:
    many, one, usage = all_.measured, alone.measured, all_.usage
    name = f"scale.{kind.name}"
    return [
        higher(f"{name}: requests a second of {count} executors against one",
               many.per_s, "req/s", one.per_s, LEAST * count),
        at_most(f"{name}_p99: of {count} executors over that of one",
                many.answered.p99 / one.answered.p99, "", SAME_P99),
        Figure(f"{name}_p50: of {count} executors", many.answered.p50, "ms", one.answered.p50,
               one.answered.p50 / many.answered.p50),
        plain(f"{name}_failed: requests that failed", many.failed + one.failed, "requests"),
        plain(f"{name}_gpu: busy share of the GPUs with {count}", _mean(usage.gpus), "of 1"),
        plain(f"{name}_gpu_one: busy share of the GPU with one", max(alone.usage.gpus, default=0.0),
              "of 1"),
        plain(f"{name}_busiest: CPU of the busiest process of "
              f"{max(usage.busiest, key=usage.busiest.__getitem__)}",
              max(usage.busiest.values()), "cores"),
    ]  # fmt: skip


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _row(kind: Kind, executors: int, found: Found) -> dict[str, object]:
    measured, usage = found.measured, found.usage
    return {
        "model": kind.name,
        "executors": executors,
        "in_flight": kind.in_flight * executors,
        "per_s": measured.per_s,
        "rows_per_batch": found.rows_per_batch,
        "p50_ms": measured.answered.p50,
        "p99_ms": measured.answered.p99,
        "ok": measured.ok,
        "failed": measured.failed,
        "first_error": measured.first_error,
        "client_cpu_us": measured.own_cpu_us,
        "gpu_busy": usage.gpus,
        "cpu_cores": usage.services,
        "busiest_process_cores": usage.busiest,
    }
