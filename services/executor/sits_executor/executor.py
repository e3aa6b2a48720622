"""Everything of one executor that does work, without its ports."""

from itertools import count
from pathlib import Path

from prometheus_client import CollectorRegistry

from sits_core.tracing import Tracer
from sits_executor.backends.base import Backend
from sits_executor.background import Background
from sits_executor.collector import ModelCollector
from sits_executor.contract import Contract
from sits_executor.cpu_quota import cpus
from sits_executor.device import is_gpu
from sits_executor.identity import Identity
from sits_executor.listener import ExecuteListener
from sits_executor.metrics import Metrics
from sits_executor.payloads import Payloads
from sits_executor.repository.catalog import Catalog
from sits_executor.repository.layout import Repository
from sits_executor.repository.loader import Loader, RunBatch
from sits_executor.repository.manager import Manager
from sits_executor.runner import Runner
from sits_executor.settings import ExecutorSettings
from sits_executor.spans import Spans


class Executor:
    """Puts the parts together; `app.serve` adds the ports."""

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
        self.listener = ExecuteListener(
            self.catalog, payloads, self._metrics, identity.id, settings.max_message_bytes
        )
        self.manager = Manager(
            Repository(Path(settings.executor_model_repository)),
            self._loader(settings),
            self.catalog,
            self._background,
            settings.executor_upload_bytes,
        )
        registry.register(ModelCollector(self.catalog, self._metrics.label))

    def start(self) -> None:
        self.catalog.changed = self.listener.announce
        self._background.start()

    def stop(self) -> None:
        for model in self.catalog.loaded():
            model.close()
        self.manager.close()

    def _loader(self, settings: ExecutorSettings) -> Loader:
        return Loader(
            self._make_runner,
            self.catalog.find,
            lambda model: self._metrics.of(model).timed,
            threads=settings.executor_threads or cpus(),
            on_gpu=is_gpu(self.identity.device),
            default_max_batch=settings.executor_default_max_batch,
            queue_batches=settings.executor_queue_batches,
        )

    def _make_runner(self, contract: Contract, backend: Backend) -> RunBatch:
        metrics = self._metrics.of(contract.model)
        return Runner(
            contract,
            backend,
            self._payloads,
            self._spans,
            metrics,
            self.identity.id,
            self._executions,
        ).run
