"""Other servers with the same networks, each from an environment of its own."""

import os
import shutil
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from sits_bench import paths, repositories
from sits_bench.onnx_models import Network
from sits_bench.paths import BENCH, WORK
from sits_bench.processes import family, listening, started, wait_until
from sits_bench.system import Running, System
from sits_cli.ports import free_ports

NAMES: Final = ("triton", "mlserver", "ray", "mosec")
START_S: Final = 120.0
MOSEC_PATH: Final = "/inference"


def environment(peer: str) -> Path:
    return paths.peers() / peer


def installed(peer: str) -> bool:
    """Whether `make bench-peers` finished it, with what it asks for now."""
    stamp = environment(peer) / ".installed"
    return stamp.is_file() and stamp.read_text() == _requirements(peer)


def mark_installed(peer: str) -> None:
    (environment(peer) / ".installed").write_text(_requirements(peer))


def _requirements(peer: str) -> str:
    return (BENCH / "peers" / peer / "requirements.txt").read_text()


def missing() -> list[str]:
    return [peer for peer in NAMES if not installed(peer)]


def system(peer: str, network: Network) -> System:
    makers: dict[str, Callable[[Network], System]] = {
        "triton": Triton,
        "mlserver": MLServer,
        "ray": RayServe,
        "mosec": Mosec,
    }
    return makers[peer](network)


@dataclass(frozen=True, slots=True)
class Triton:
    """Triton 2.51 with its python backend; no queue delay, which is its best setting here.

    `queue_size` 0 = no limit. HTTP and metrics are switched off.
    """

    network: Network
    queue_size: int = 0

    @property
    def name(self) -> str:
        return "triton" if not self.queue_size else f"triton, queue of {self.queue_size}"

    @contextmanager
    def start(self) -> Iterator[Running]:
        (port,) = free_ports(1)
        target = f"127.0.0.1:{port}"
        argv = [
            str(_package() / "bin" / "tritonserver"),
            f"--model-repository={self._repository()}",
            f"--backend-directory={_backends()}",
            "--grpc-address=127.0.0.1",
            f"--grpc-port={port}",
            "--allow-http=false",
            "--allow-metrics=false",
        ]
        env = {
            "LD_LIBRARY_PATH": str(sysconfig.get_config_var("LIBDIR")),
            # The stub ignores PYTHONPATH, and finds its packages by the python3 on the path.
            "PATH": _path("triton"),
        }
        with started(self.name, argv, env) as process:
            wait_until(lambda: _model_ready(target, self.network), process, self.name, START_S)
            yield Running(target, lambda: family(process.pid))

    def _repository(self) -> Path:
        limit = f"default_queue_policy {{ max_queue_size: {self.queue_size} }}"
        config = (
            f'backend: "python"\n{repositories.tensors(self.network)}'
            "instance_group { count: 1 kind: KIND_CPU }\n"
            f"dynamic_batching {{ {limit if self.queue_size else ''} }}\n"
        )
        model = repositories.Model(self.network.name, config, self.network.build())
        root = repositories.write(f"triton-{self.network.name}", [model])
        shutil.copy(BENCH / "peers" / "triton" / "model.py", root / self.network.name / "1")
        return root


def _path(peer: str) -> str:
    return f"{environment(peer) / 'bin'}:{os.environ['PATH']}"


def _package() -> Path:
    return _site_packages("triton") / "pytriton" / "tritonserver"


def _site_packages(peer: str) -> Path:
    (found,) = environment(peer).glob("lib/python3.*/site-packages")
    return found


def _backends() -> Path:
    """The backend and the stub for the environment's Python side by side, as Triton wants it."""
    folder = WORK / "triton-backends" / "python"
    folder.mkdir(parents=True, exist_ok=True)
    version = _site_packages("triton").parent.name.removeprefix("python")
    stub = _package() / "python_backend_stubs" / version / "triton_python_backend_stub"
    for file in (*(_package() / "backends" / "python").glob("*triton*"), stub):
        link = folder / file.name
        link.unlink(missing_ok=True)
        link.symlink_to(file)
    return folder.parent


def _model_ready(target: str, network: Network) -> bool:
    if not listening(target):
        return False
    with triton.InferenceServerClient(target) as client, suppress(InferenceServerException):
        return bool(client.is_model_ready(network.name))
    return False


@dataclass(frozen=True, slots=True)
class MLServer:
    """MLServer with a custom runtime, without worker processes and without its adaptive
    batching: with one small model, both cost more CPU than they save."""

    network: Network
    name: str = "mlserver"

    @contextmanager
    def start(self) -> Iterator[Running]:
        grpc_port, http_port, metrics_port = free_ports(3)
        folder = self._folder(grpc_port, http_port, metrics_port)
        target = f"127.0.0.1:{grpc_port}"
        argv = [str(environment(self.name) / "bin" / "mlserver"), "start", str(folder)]
        env = {
            "MODEL": str(self.network.build()),
            "PYTHONPATH": str(BENCH / "peers" / "mlserver"),
            "PATH": _path(self.name),
        }
        with started(self.name, argv, env, folder=folder) as process:
            wait_until(lambda: _model_ready(target, self.network), process, self.name, START_S)
            yield Running(target, lambda: family(process.pid))

    def _folder(self, grpc_port: int, http_port: int, metrics_port: int) -> Path:
        folder = WORK / "mlserver"
        folder.mkdir(parents=True, exist_ok=True)
        server = (
            f'{{"host": "127.0.0.1", "http_port": {http_port}, "grpc_port": {grpc_port}, '
            f'"metrics_port": {metrics_port}, "parallel_workers": 0, "debug": false}}'
        )
        model = (
            f'{{"name": "{self.network.name}", "implementation": "runtime.Network", '
            '"max_batch_size": 0}'
        )
        (folder / "settings.json").write_text(server)
        (folder / "model-settings.json").write_text(model)
        return folder


@dataclass(frozen=True, slots=True)
class RayServe:
    """Ray Serve's gRPC proxy with one replica that batches."""

    network: Network
    name: str = "ray"

    @contextmanager
    def start(self) -> Iterator[Running]:
        grpc_port, http_port = free_ports(2)
        target = f"127.0.0.1:{grpc_port}"
        folder = BENCH / "peers" / "ray"
        argv = [
            str(environment(self.name) / "bin" / "python"),
            str(folder / "app.py"),
            str(grpc_port),
            str(http_port),
            str(self.network.build()),
        ]
        env = {"PYTHONPATH": str(folder), "RAY_USAGE_STATS_ENABLED": "0"}
        with started(self.name, argv, env) as process:
            wait_until(lambda: self._answers(target), process, self.name, START_S)
            yield Running(target, lambda: family(process.pid))

    def _answers(self, target: str) -> bool:
        """The proxy listens before its application is there."""
        if not listening(target):
            return False
        inference = self.network.inference()
        tensor = triton.InferInput("INPUT", (1, *self.network.dims), self.network.datatype[5:])
        tensor.set_data_from_numpy(inference.inputs["INPUT"])
        with triton.InferenceServerClient(target) as client, suppress(InferenceServerException):
            client.infer(self.network.name, [tensor], client_timeout=5)
            return True
        return False


@dataclass(frozen=True, slots=True)
class Mosec:
    """mosec: HTTP/1.1, and just the bytes of the tensor; spared protobuf and HTTP/2."""

    network: Network
    name: str = "mosec"

    @contextmanager
    def start(self) -> Iterator[Running]:
        (port,) = free_ports(1)
        target = f"127.0.0.1:{port}"
        argv = [
            str(environment(self.name) / "bin" / "python"),
            str(BENCH / "peers" / "mosec" / "server.py"),
            *("--address", "127.0.0.1", "--port", str(port), "--log-level", "warning"),
        ]
        dtype = "float32" if self.network.datatype == "TYPE_FP32" else "int64"
        env = {"MODEL": str(self.network.build()), "DTYPE": dtype}
        with started(self.name, argv, env) as process:
            wait_until(lambda: listening(target), process, self.name, START_S)
            pids = lambda: family(process.pid)  # noqa: E731
            yield Running(target, pids, path=MOSEC_PATH, http1=True)
