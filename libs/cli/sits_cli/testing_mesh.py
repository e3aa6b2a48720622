"""What tests of a whole mesh share: models without files, a running mesh, what one sees of it."""

import json
import os
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import numpy.typing as npt
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from sits_cli import ports, redis_keeper
from sits_cli.mesh import Mesh, Plan
from sits_core.rpc import channel_options
from sits_core.testing import wait_until
from sits_protos.v1.control_pb2 import GetStateRequest, GetStateResponse
from sits_protos.v1.control_pb2_grpc import ControlStub

_numbers = count(1)

Array = npt.NDArray[Any]

READY_S = 60.0
ANSWER_S = 20.0


# models


def write_model(
    root: Path,
    name: str,
    function: str,
    datatype: str = "FP32",
    dims: str = "[ -1 ]",
    max_batch: int = 8,
    more: str = "",
    *,
    pairs: Mapping[str, str] | None = None,
    out_datatype: str = "",
    **parameters: object,
) -> None:
    """A model of the builtin backend. `pairs` are input → output, X → Y by default; `more`
    is further config.pbtxt text."""
    values = "".join(
        f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}\n'
        for key, value in {"function": function, **parameters}.items()
    )
    tensors = "".join(
        f'input {{ name: "{x}" data_type: {_type(datatype)} dims: {dims} }}\n'
        f'output {{ name: "{y}" data_type: {_type(out_datatype or datatype)} dims: {dims} }}\n'
        for x, y in (pairs or {"X": "Y"}).items()
    )
    folder = root / name / "1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder.parent / "config.pbtxt").write_text(
        f'name: "{name}"\nbackend: "builtin"\nmax_batch_size: {max_batch}\n{tensors}{values}{more}'
    )


def _type(datatype: str) -> str:
    return "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"


# a mesh


def plan(
    models: Path,
    logs: Path,
    executors: int = 2,
    env: Mapping[str, str] | None = None,
    service_env: Mapping[str, Mapping[str, str]] | None = None,
    redis_url: str | None = None,
) -> Plan:
    """Free ports, and a SITS_REDIS_PREFIX that no other mesh of this machine has: it leads the
    names of Redis keys and of files in shared memory."""
    own = {
        "SITS_REDIS_PREFIX": f"test-{os.getpid()}-{next(_numbers)}",
        "SITS_TRACE_RATIO": "0",
        "SITS_LOG_LEVEL": "info",
        # Processes of a busy machine need longer to come back than clients should wait for.
        "SITS_PREPROCESS_WAIT_S": "15",
        "SITS_DISPATCHER_WAIT_S": "15",
    }
    return Plan(
        ports.free(executors),
        models=models,
        log_dir=logs,
        env=own | dict(env or {}),
        service_env=service_env or {},
        redis_url=redis_url,
    )


@contextmanager
def running(plan: Plan, model: str, headers: Mapping[str, str] | None = None) -> Iterator[Mesh]:
    """A mesh that serves `model`, and that has nothing to be ashamed of in its logs at the end.
    `headers` are what its clients need."""
    with Mesh(plan) as mesh:
        mesh.wait_ready(READY_S)
        wait_until(lambda: serves(mesh, model, headers), READY_S, f"model {model} served")
        yield mesh
    if found := complaints(plan.log_dir):
        raise AssertionError("\n".join(["services complained", *found]))


def whole(mesh: Mesh) -> bool:
    """Every service runs and says that it is ready."""
    return all(mesh.ready(name) for name in mesh.names())


def serves(mesh: Mesh, model: str, headers: Mapping[str, str] | None = None) -> bool:
    """Whether the front door takes requests for `model`."""
    with triton.InferenceServerClient(mesh.addresses.front) as client:
        try:
            return bool(client.is_model_ready(model, headers=headers))
        except InferenceServerException:
            return False


def complaints(log_dir: Path) -> list[str]:
    """Lines that no service may write, whatever its clients do and whoever dies: errors, and
    what libraries print past the log, such as tracebacks."""
    return [
        f"{path.name}: {line[:2000]}"
        for path in sorted(log_dir.glob("*.log"))
        if path.stem != redis_keeper.NAME
        for line in path.read_text(errors="replace").splitlines()
        if _is_complaint(line)
    ]


def _is_complaint(line: str) -> bool:
    try:
        return json.loads(line)["level"] in ("error", "critical")
    except (ValueError, KeyError):
        return bool(line.strip())


def log_lines(mesh: Mesh, service: str, event: str) -> list[dict[str, Any]]:
    """What `service` logged under this name."""
    path = mesh.plan.log_dir / f"{service}.log"
    lines = (line for line in path.read_text().splitlines() if f'"{event}"' in line)
    return [found for line in lines if (found := json.loads(line)).get("event") == event]


def state_of(mesh: Mesh) -> GetStateResponse:
    """The mesh as its dispatcher sees it."""
    options = channel_options(64 << 20)
    with grpc.insecure_channel(mesh.addresses.dispatcher, options=options) as channel:
        return ControlStub(channel).GetState(GetStateRequest(), timeout=5)


def idle(mesh: Mesh, but: int = 0) -> bool:
    """Nothing waits and nothing is in flight, but for so many batches."""
    queued = metric(mesh.addresses.front_metrics, "sits_preprocess_queued")
    pending = metric(mesh.addresses.admin, "sits_dispatcher_pending")
    in_flight = sum(peer.batches_in_flight for peer in state_of(mesh).peers)
    return queued == pending == 0 and in_flight <= but


# what one sees of it


def metric(address: str, name: str, **labels: str) -> float:
    """The sum of the samples that have these labels."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as page:
        lines = page.read().decode().splitlines()
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.partition("{")[0].partition(" ")[0] == name and all(w in line for w in wanted)
    )


def executor_metric(mesh: Mesh, name: str, **labels: str) -> float:
    """The sum over all executors."""
    return sum(metric(at, name, **labels) for _, at in mesh.addresses.executors)


def runs(mesh: Mesh, model: str) -> float:
    """How often executors ran `model` for requests since they started."""
    return executor_metric(mesh, "sits_executor_run_seconds_count", model=model)


def pids(mesh: Mesh) -> dict[str, int | None]:
    return {name: mesh.pid(name) for name in mesh.names()}


def pid_of(mesh: Mesh, service: str) -> int:
    pid = mesh.pid(service)
    if pid is None:
        raise AssertionError(f"{service} does not run")
    return pid


# clients


def tensor(array: Array, datatype: str = "", name: str = "X") -> triton.InferInput:
    made = triton.InferInput(name, array.shape, datatype or np_to_triton_dtype(array.dtype))
    made.set_data_from_numpy(array)
    return made


def status_of(call: Callable[[], object]) -> tuple[str, str]:
    """Status and text of a call that must fail, such as ("NOT_FOUND", "…")."""
    try:
        call()
    except InferenceServerException as error:
        return str(error.status()).removeprefix("StatusCode."), str(error.message())
    raise AssertionError("the call succeeded")
