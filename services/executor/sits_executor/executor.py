"""Everything of one executor that does work, without its ports."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry

from sits_core.metrics import BoundedLabel
from sits_core.processors import KeepOff
from sits_core.settings import SettingsError
from sits_core.tracing import Tracer
from sits_executor.backends.base import Backend
from sits_executor.backends.budget import Budget
from sits_executor.backends.streamed import DeviceLost, StreamBackend
from sits_executor.background import Background
from sits_executor.collector import ModelCollector
from sits_executor.contract import Contract
from sits_executor.cpu_quota import cpus
from sits_executor.device import is_gpu
from sits_executor.drain import refuse_waiting
from sits_executor.gangs import GangChooser
from sits_executor.identity import Identity
from sits_executor.listener import ExecuteListener
from sits_executor.metrics import Metrics, ModelMetrics
from sits_executor.payloads import Payloads
from sits_executor.queue import BatchQueue
from sits_executor.repository.catalog import Catalog
from sits_executor.repository.describe import SLOTS_PER_INSTANCE
from sits_executor.repository.layout import Repository
from sits_executor.repository.loader import Loader, RunBatch
from sits_executor.repository.manager import Manager
from sits_executor.runner import Runner
from sits_executor.settings import ExecutorSettings
from sits_executor.spans import Spans
from sits_executor.streams.buffers import Buffers
from sits_executor.streams.collector import StreamCollector
from sits_executor.streams.model import StreamModel
from sits_executor.streams.runner import StreamRunner
from sits_executor.streams.scheduler import StreamScheduler
from sits_executor.tenancy.opening import open_tenancy
from sits_protos.v1.link_pb2 import ModelEntry
from sits_scheduling.watermarks import Precision

if TYPE_CHECKING:
    from sits_executor.triton.manager import TritonManager


class ModelManager(Protocol):
    """What Control asks for, and the start and the end."""

    def load_all(self) -> "list[Future[None]]": ...
    def load(
        self, name: str, config_json: str = "", files: Mapping[str, bytes] | None = None
    ) -> "Future[None]": ...
    def unload(self, name: str, *, with_steps: bool = False) -> "Future[None]": ...
    def listing(self) -> list[ModelEntry]: ...
    def close(self) -> None: ...


class Executor:
    """Puts the parts together; `app.serve` adds the ports. `lost` is called once no device is
    left to run anything; `reachable` when the Triton server behind us, if there is one, goes away
    or comes back."""

    def __init__(
        self,
        settings: ExecutorSettings,
        identity: Identity,
        payloads: Payloads,
        tracer: Tracer,
        registry: CollectorRegistry,
    ) -> None:
        self.identity, self.tracer = identity, tracer
        self.catalog = Catalog()
        self._payloads, self._metrics = payloads, Metrics(registry)
        self._spans, self._executions = Spans(tracer, identity.id), count(1)
        self._background = Background(settings.executor_load_threads, "load")
        self._staging = Budget(settings.executor_staging_bytes)
        self._buffer_samples = settings.executor_buffer_samples
        self.scheduler = StreamScheduler(
            streams=settings.executor_streams,
            hang_s=settings.executor_hang_s,
            lost=self._device_lost,
        )
        self.lost: Callable[[], object] = lambda: None
        self.listener = ExecuteListener(
            self.catalog, payloads, self._metrics, identity.id, settings.max_message_bytes
        )
        self._tenancy = open_tenancy(settings)
        self.listener.tenant_memory = self._tenancy.memory
        self._keep_off = KeepOff(self._short_computing)
        self.up = True
        self.reachable: Callable[[bool], object] = lambda up: None
        self.manager = self._manager(settings, registry)
        label = self._metrics.label
        registry.register(ModelCollector(self.catalog, label))
        registry.register(StreamCollector(self.scheduler, self._staging, label))

    def start(self) -> None:
        self.catalog.changed = self.listener.announce
        self._background.start()
        self._keep_off.start()

    def stop(self) -> None:
        self._keep_off.stop()
        for model in self.catalog.loaded():
            model.close()
        self.scheduler.stop()
        self._tenancy.close()
        self.manager.close()

    def _short_computing(self) -> Iterator[Thread]:
        yield from self.listener.readers()
        for model in self.catalog.loaded():
            yield from model.computing

    def _manager(self, settings: ExecutorSettings, registry: CollectorRegistry) -> ModelManager:
        """Of a repository of our own, or of the Triton server behind us."""
        if not settings.executor_triton_url:
            return Manager(
                Repository(Path(settings.executor_model_repository)),
                self._loader(settings),
                self.catalog,
                self._background,
                settings.executor_upload_bytes,
            )
        manager = _open_triton(
            settings, self.catalog, self._background, self._make_runner, registry,
            self._metrics.label,
        )  # fmt: skip
        manager.reachable = self._reached
        self.up = False
        return manager

    def _reached(self, up: bool) -> None:
        self.up = up
        self.reachable(up)

    def _loader(self, settings: ExecutorSettings) -> Loader:
        return Loader(
            self._make_runner,
            self.catalog.find,
            lambda model: self._metrics.of(model).timed,
            self._serve_streams,
            lanes=self._tenancy.lanes,
            threads=settings.executor_threads or cpus(),
            on_gpu=is_gpu(self.identity.device),
            default_max_batch=settings.executor_default_max_batch,
            queue_batches=settings.executor_queue_batches,
            gpu_memory_bytes=settings.executor_gpu_memory_bytes,
            staging=self._staging,
            choose_gang=GangChooser(settings, self.identity.id),
        )

    def _make_runner(self, contract: Contract, backend: Backend) -> RunBatch:
        runner = Runner(*self._runner_parts(contract, backend))
        runner.lost = self.scheduler.lose
        return runner.run

    def _serve_streams(
        self,
        contract: Contract,
        backend: StreamBackend,
        capacity: int,
        default_priority: int,
        closed: Callable[[], object],
    ) -> BatchQueue:
        """What is announced to dispatchers fits into the queue, in batches and in samples."""
        announced = SLOTS_PER_INSTANCE * backend.streams * max(1, contract.max_rows)
        buffers = Buffers(Precision[backend.precision], self._buffer_samples, announced)
        queue = BatchQueue(capacity, default_priority, buffers.queue)
        runner = StreamRunner(*self._runner_parts(contract, backend))
        runner.stream, runner.lost = backend, self.scheduler.lose
        name = f"{contract.model}/{contract.version}"
        self.scheduler.attach(StreamModel(name, queue, backend, runner, buffers, closed))
        return queue

    def _runner_parts(
        self, contract: Contract, backend: Backend
    ) -> tuple[Contract, Backend, Payloads, Spans, ModelMetrics, str, Iterator[int]]:
        metrics = self._metrics.of(contract.model)
        return (
            contract, backend, self._payloads, self._spans, metrics, self.identity.id,
            self._executions,
        )  # fmt: skip

    def _device_lost(self, error: DeviceLost) -> None:
        """Nothing here runs any more: what waits goes elsewhere, and so will what comes."""
        loaded = self.catalog.loaded()
        for name in {model.entry.name for model in loaded}:
            self.catalog.withdraw(name, self.catalog.versions(name), error.message)
        for model in loaded:
            model.close()
        refuse_waiting(loaded, self.identity.id, error)
        self.lost()


def _open_triton(
    settings: ExecutorSettings, catalog: Catalog, background: Background,
    make_runner: Callable[[Contract, Backend], RunBatch], registry: CollectorRegistry,
    label: BoundedLabel,
) -> "TritonManager":  # fmt: skip
    """Its client is an optional extra. Raises `SettingsError` without it."""
    try:
        from sits_executor.triton.opening import open_triton
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"SITS_EXECUTOR_TRITON_URL needs {error.name}: pip install 'sits-executor[triton]'"
        ) from None
    return open_triton(settings, catalog, background, make_runner, registry, label)
