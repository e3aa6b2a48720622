"""Turns a model's folder into loaded versions: configuration, backend, checks, warm-up, threads."""

from collections.abc import Callable, Sequence

import structlog

from sits_core.pipeline import Pipeline
from sits_executor.backends.base import Backend, ChooseGang, LoadSpec, never_waits, no_gang
from sits_executor.backends.budget import Budget
from sits_executor.backends.streamed import StreamBackend
from sits_executor.batch import Batch
from sits_executor.contract import Contract, contract_of
from sits_executor.cpu_quota import threads_per_instance
from sits_executor.instances import Instances, Lane
from sits_executor.pipelines.opening import Find, Ran, open_pipeline
from sits_executor.queue import BatchQueue
from sits_executor.repository.check import check
from sits_executor.repository.complete import complete, complete_pipeline
from sits_executor.repository.content import Content
from sits_executor.repository.describe import entry_of, read_labels
from sits_executor.repository.layout import ModelFolder
from sits_executor.repository.loaded import LoadedModel
from sits_executor.repository.plan import Plan, plan_of
from sits_executor.repository.sharing import Shared
from sits_executor.repository.supported import MAX_INSTANCES, Placement
from sits_executor.warmup import warm_up
from sits_protos.oip.model_config_pb2 import ModelConfig

log = structlog.get_logger()

RunBatch = Callable[[Batch], bool]
MakeRunner = Callable[[Contract, Backend], RunBatch]
ServeStreams = Callable[[Contract, StreamBackend, int, int, Callable[[], object]], BatchQueue]
"""Serves a model on the device's scheduler: gets the queue's capacity and default priority, and
what to call at the end; gives the queue."""


class Loader:
    """Pure construction: keeps no state about what is loaded. `find` gives the models that a
    pipeline is made of, `ran` counts their runs in it."""

    def __init__(
        self,
        make_runner: MakeRunner,
        find: Find,
        ran: Ran,
        serve_streams: ServeStreams,
        *,
        lanes: Sequence[Lane] = (),
        threads: int,
        on_gpu: bool,
        default_max_batch: int,
        queue_batches: int,
        gpu_memory_bytes: int = 0,
        staging: Budget | None = None,
        choose_gang: ChooseGang = no_gang,
    ) -> None:
        self._make_runner, self._find, self._ran = make_runner, find, ran
        self._serve_streams, self._lanes = serve_streams, lanes
        self._threads, self._on_gpu = threads, on_gpu
        self._default_max_batch, self._queue_batches = default_max_batch, queue_batches
        self._gpu_memory_bytes, self._staging = gpu_memory_bytes, staging or Budget()
        self._choose_gang = choose_gang

    def plan(self, folder: ModelFolder, config_json: str) -> Plan:
        """Reads the configuration only. Raises `LoadError`."""
        return plan_of(folder, config_json, on_gpu=self._on_gpu)

    def load(self, plan: Plan, version: str) -> LoadedModel:
        """Opens, checks and warms up one version, and starts its instances. Raises `LoadError`."""
        content = Content(plan.given.config, plan.folder, version)
        if plan.pipeline is not None:
            return self._load_pipeline(plan, plan.pipeline, version, content)
        spec = self._spec(plan, version)
        backend = plan.choice.load(spec)
        try:
            return self._ready(plan, backend, spec, content)
        except BaseException:
            backend.close()
            raise

    def _load_pipeline(
        self, plan: Plan, pipeline: Pipeline, version: str, content: Content
    ) -> LoadedModel:
        """Batches that are at different steps run at once: an instance for each of the steps."""
        config = complete_pipeline(plan.given)
        check(config, None)
        backend = open_pipeline(config, pipeline, version, self._find, self._ran)
        instances = min(MAX_INSTANCES, backend.parallel)
        try:
            made_of = content.digest(config, backend.contents)
            return self._serve(plan, backend, config, version, instances, made_of)
        except BaseException:
            backend.close()
            raise

    def _ready(self, plan: Plan, backend: Backend, spec: LoadSpec, content: Content) -> LoadedModel:
        where = _where_it_runs(plan.placement, backend)
        if backend.fallback:
            log.warning("model.cpu_fallback", model=spec.model, cause=backend.fallback)
        config = complete(plan.given, backend.signature, where, self._default_max_batch)
        config.backend, config.platform = plan.choice.backend, plan.choice.platform
        config.default_model_filename = spec.filename
        check(config, backend.signature)
        made_of = content.digest(config)
        return self._serve(plan, backend, config, spec.version, where.instances, made_of)

    def _serve(
        self, plan: Plan, backend: Backend, config: ModelConfig, version: str, count: int,
        content: bytes,
    ) -> LoadedModel:  # fmt: skip
        contract = contract_of(config, version, content)
        warm_up(backend, contract, config, plan.folder)
        if isinstance(backend, StreamBackend):
            backend.prepare(contract)
        labels = read_labels(config, plan.folder)
        entry = entry_of(config, version, plan.versions, labels, backend.fallback, count, content)
        shared = Shared(backend, count)
        capacity = max(self._queue_batches, entry.slots)
        priority = config.dynamic_batching.default_priority_level
        if isinstance(backend, StreamBackend):
            queue = self._serve_streams(contract, backend, capacity, priority, shared.release)
            return LoadedModel(entry, contract, shared, queue)
        queue = BatchQueue(capacity, priority)
        instances = Instances(
            f"{contract.model}/{contract.version}",
            count,
            queue,
            self._make_runner(contract, backend),
            shared.release,
            self._lanes,
            never_waits=never_waits(backend),
        )
        instances.start()
        return LoadedModel(entry, contract, shared, queue, instances.computing)

    def _spec(self, plan: Plan, version: str) -> LoadSpec:
        return LoadSpec(
            model=plan.folder.name,
            version=version,
            directory=(plan.folder.path / version).resolve(),
            filename=plan.filename(version),
            config=plan.given.config,
            instances=plan.placement.instances,
            threads=threads_per_instance(self._threads, plan.placement.instances),
            gpu=plan.placement.gpu,
            gpu_memory_bytes=self._gpu_memory_bytes,
            staging=self._staging,
            gang=self._choose_gang,
        )


def _where_it_runs(where: Placement, backend: Backend) -> Placement:
    """A backend that fell back runs on the CPU, and its configuration must say so."""
    return where._replace(gpu=None) if backend.fallback else where
