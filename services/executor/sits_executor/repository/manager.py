"""Loads, reloads and unloads models in the background; what serves goes on serving meanwhile."""

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from functools import partial

import structlog

from sits_core.errors import Internal, InvalidArgument, SitsError
from sits_core.pipeline import Pipeline
from sits_executor.backends.base import LoadError
from sits_executor.background import Background
from sits_executor.pipelines.opening import StepsMissing
from sits_executor.repository.catalog import Catalog
from sits_executor.repository.complete import complete_pipeline
from sits_executor.repository.dependents import Dependents, after, pipelines_last, refuse_circle
from sits_executor.repository.describe import announced_apart, entry_of, read_labels
from sits_executor.repository.layout import ModelFolder, Repository, check_name
from sits_executor.repository.loaded import LoadedModel
from sits_executor.repository.loader import Loader
from sits_executor.repository.plan import Plan
from sits_executor.repository.uploads import Upload
from sits_executor.safe import detail, safe_cause
from sits_protos.v1.link_pb2 import ModelEntry

log = structlog.get_logger()

UNLOADED = "unloaded"


class LoadFailed(InvalidArgument):
    """The model cannot be loaded as it is; the text says why."""

    reason = "LOAD_FAILED"


class Manager:
    """Every call returns at once with a future; loads of one model happen one after the other."""

    def __init__(
        self,
        repository: Repository,
        loader: Loader,
        catalog: Catalog,
        background: Background,
        upload_bytes: int,
    ) -> None:
        self._repository, self._loader, self._catalog = repository, loader, catalog
        self._background, self._upload_bytes = background, upload_bytes
        self._turns: dict[str, threading.Lock] = {}
        self._uploads: dict[str, Upload] = {}
        self._dependents = Dependents(catalog)
        self._lock = threading.Lock()

    def load_all(self) -> "list[Future[None]]":
        """Load every model of the repository, pipelines last; one that fails is UNAVAILABLE, the
        others load."""
        names, pipelines = pipelines_last(self._repository)
        first = [self._load_found(name) for name in names]
        return [*first, *(after(first, partial(self._load_again, name)) for name in pipelines)]

    def load(
        self, name: str, config_json: str = "", files: Mapping[str, bytes] | None = None
    ) -> "Future[None]":
        """Load, or load again; first the steps of a pipeline that are not ready. The future
        raises `SitsError` when that failed.

        Raises `InvalidArgument` or `NotFound` at once for a wrong name or unsafe files.
        """
        check_name(name)
        upload = Upload(name, files, self._upload_bytes) if files else None
        folder = upload.write() if upload else self._repository.folder(name)
        return self._background.submit(lambda: self._load(folder, config_json, upload))

    def unload(self, name: str, *, with_steps: bool = False) -> "Future[None]":
        """Serve no more, nor the pipelines that it is a step of; accepted batches finish.
        `with_steps`: also the steps of a pipeline. Raises `NotFound` when it was never loaded."""
        check_name(name)
        if not self._catalog.versions(name):
            self._repository.folder(name)
        return self._background.submit(lambda: self._unload(name, with_steps))

    def listing(self) -> list[ModelEntry]:
        """Known versions in every state, and models of the repository that were never loaded."""
        entries = self._catalog.entries()
        known = {entry.name for entry in entries}
        untouched = [n for n in self._repository.names() if n not in known]
        return sorted(
            [*entries, *(ModelEntry(name=name) for name in untouched)], key=lambda e: e.name
        )

    def close(self) -> None:
        for upload in self._uploads.values():
            upload.remove()

    def _load_found(self, name: str) -> "Future[None]":
        """One whose folder may not be opened is UNAVAILABLE, too."""
        try:
            return self.load(name)
        except SitsError as error:
            self._catalog.failed(name, [""], error.message)
            refused: Future[None] = Future()
            refused.set_exception(error)
            return refused

    def _load_again(self, name: str) -> "Future[None]":
        """Without loading steps: those that are not ready have just failed."""
        folder = self._repository.folder(name)
        return self._background.submit(lambda: self._load(folder, "", None, steps=False))

    def _load(
        self, folder: ModelFolder, config_json: str, upload: Upload | None, *, steps: bool = True
    ) -> None:
        with self._turn(folder.name):
            try:
                plan = self._plan(folder, config_json)
                self._dependents.want(plan, partial(self._reload, folder, config_json))
                if steps and plan.pipeline is not None:
                    self._load_steps(plan.pipeline)
                self._load_versions(plan)
            except BaseException:
                if upload:
                    upload.remove()
                raise
            self._keep(folder.name, upload)
        self._dependents.reload(folder.name)

    def _reload(self, folder: ModelFolder, config_json: str) -> None:
        """One of its steps changed. Failures are in the catalog: nobody waits for this."""
        self._background.submit(lambda: self._load_as_before(folder, config_json))

    def _load_as_before(self, folder: ModelFolder, config_json: str) -> None:
        with self._turn(folder.name):
            self._load_versions(self._plan(folder, config_json))
        self._dependents.reload(folder.name)

    def _load_steps(self, pipeline: Pipeline) -> None:
        """Those that are not ready. What goes wrong with one shows when the pipeline is made."""
        for step in pipeline.steps:
            try:
                with self._turn(step.model):
                    if not self._catalog.loaded(step.model):
                        self._load_step(step.model)
                        self._dependents.reload(step.model, but=(pipeline.name,))
            except SitsError as error:
                log.info("pipeline.step_failed", model=step.model, cause=error.message)

    def _load_step(self, name: str) -> None:
        plan = self._plan(self._repository.folder(name), "")
        self._dependents.want(plan, partial(self._reload, plan.folder, ""))
        if plan.pipeline is not None:
            self._load_steps(plan.pipeline)
        self._load_versions(plan)

    def _plan(self, folder: ModelFolder, config_json: str) -> Plan:
        try:
            plan = self._loader.plan(folder, config_json)
            if plan.pipeline is not None:
                refuse_circle(self._repository, plan.pipeline)
            return plan
        except Exception as error:
            failure = _failure(folder.name, error)
            known = self._catalog.versions(folder.name) or [str(v) for v in folder.versions()]
            self._catalog.failed(folder.name, known[-1:] or [""], failure.message)
            raise failure from error

    def _load_versions(self, plan: Plan) -> None:
        """All of them or none: a reload that fails leaves what served before."""
        name = plan.folder.name
        self._catalog.loading(name, plan.versions)
        ready: list[LoadedModel] = []
        for version in plan.versions:
            try:
                ready.append(self._loader.load(plan, version))
            except Exception as error:
                for model in ready:
                    model.close()
                failure = _failure(name, error)
                like = _apart(plan, version) if isinstance(error, StepsMissing) else None
                self._catalog.failed(name, plan.versions, failure.message, like)
                raise failure from error
        self._swap(name, plan.versions, ready)

    def _swap(self, name: str, versions: Iterable[str], ready: Iterable[LoadedModel]) -> None:
        replaced = [self._catalog.install(model) for model in ready]
        gone = set(self._catalog.versions(name)) - set(versions)
        replaced += self._catalog.withdraw(name, gone, UNLOADED) if gone else []
        if step := self._dependents.stale(ready):
            replaced += self._dependents.withdraw(step, "was unloaded meanwhile")
        for old in replaced:
            if old is not None:
                old.close()
        log.info("model.ready", model=name, versions=list(versions))

    def _unload(self, name: str, with_steps: bool) -> None:
        steps = {step for model in self._catalog.loaded(name) for step in model.steps}
        with self._turn(name):
            self._dependents.forget(name)
            gone = self._dependents.withdraw(name, "was unloaded")
            gone += self._catalog.withdraw(name, self._catalog.versions(name), UNLOADED)
            for model in gone:
                model.close()
            self._keep(name, None)
            log.info("model.unloaded", model=name)
        for step in sorted(steps) if with_steps else ():
            self._unload(step, with_steps)

    def _keep(self, name: str, upload: Upload | None) -> None:
        """Hold on to the files of what serves now, and let go of those before."""
        with self._lock:
            old = self._uploads.pop(name, None)
            if upload is not None:
                self._uploads[name] = upload
        if old is not None:
            old.remove()

    def _turn(self, name: str) -> threading.Lock:
        with self._lock:
            return self._turns.setdefault(name, threading.Lock())


def _apart(plan: Plan, version: str) -> ModelEntry:
    """What is announced of a pipeline whose steps are not all here."""
    config = complete_pipeline(plan.given)
    labels = read_labels(config, plan.folder)
    return announced_apart(entry_of(config, version, plan.versions, labels, "", 0))


def _failure(name: str, error: Exception) -> SitsError:
    """Safe to show. What we did not foresee is logged whole."""
    if isinstance(error, LoadError):
        log.warning("model.load_failed", model=name, cause=str(error))
        return LoadFailed(f"failed to load '{name}': {error}")
    log.error("model.load_broken", model=name, detail=detail(error))
    return Internal(f"failed to load '{name}': {safe_cause(error)}")
