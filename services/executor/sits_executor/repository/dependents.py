"""Pipelines follow the models that they are made of: steps load first, and a step that goes or
comes back takes its pipelines along."""

import threading
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from typing import NamedTuple

import structlog

from sits_core.errors import SitsError
from sits_core.pipeline import Pipeline, PipelineError, is_pipeline, read
from sits_executor.backends.base import LoadError
from sits_executor.repository import given
from sits_executor.repository.catalog import Catalog
from sits_executor.repository.describe import announced_apart
from sits_executor.repository.layout import Repository
from sits_executor.repository.loaded import LoadedModel
from sits_executor.repository.plan import Plan
from sits_protos.oip.model_config_pb2 import ModelConfig

log = structlog.get_logger()


class Wanted(NamedTuple):
    """A pipeline that somebody asked for, and how to load it again."""

    steps: frozenset[str]
    reload: Callable[[], object]


class Dependents:
    """Pipelines that were asked for, loaded or not."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._wanted: dict[str, Wanted] = {}
        self._lock = threading.Lock()

    def want(self, plan: Plan, reload: Callable[[], object]) -> None:
        """Load it again whenever one of its steps has been."""
        name = plan.folder.name
        with self._lock:
            self._wanted.pop(name, None)
            if plan.pipeline is not None:
                steps = frozenset(step.model for step in plan.pipeline.steps)
                self._wanted[name] = Wanted(steps, reload)

    def forget(self, name: str) -> None:
        with self._lock:
            self._wanted.pop(name, None)

    def reload(self, step: str, but: Collection[str] = ()) -> None:
        """`step` has been loaded: so are the pipelines that it is in."""
        with self._lock:
            wanted = [(name, one) for name, one in self._wanted.items() if step in one.steps]
        for name, one in wanted:
            if name not in but:
                one.reload()

    def withdraw(self, step: str, why: str) -> list[LoadedModel]:
        """`step` goes, `why` in a word: pipelines that it is in serve no more, nor do those that
        they are in. Returned, so that they can finish."""
        gone: list[LoadedModel] = []
        for model in self._catalog.loaded():
            name, version = model.entry.name, model.entry.version
            if step in model.steps and model not in gone:
                gone += self.withdraw(name, why)
                like, reason = announced_apart(model.entry), f"its step model '{step}' {why}"
                gone += self._catalog.withdraw(name, [version], reason, like)
                log.warning("pipeline.withdrawn", model=name, reason=reason)
        return gone

    def stale(self, models: Iterable[LoadedModel]) -> str:
        """The model of a step that went while its pipeline was loading; empty = none."""
        steps = {step for model in models for step in model.steps}
        return next((step for step in sorted(steps) if not self._catalog.loaded(step)), "")


def refuse_circle(repository: Repository, pipeline: Pipeline, above: tuple[str, ...] = ()) -> None:
    """Looks before any lock is taken: two pipelines that are steps of each other would wait for
    each other. Raises `LoadError`."""
    path = (*above, pipeline.name)
    for step in pipeline.steps:
        if step.model in path:
            raise LoadError(f"it is a step of itself: {' → '.join((*path, step.model))}")
        below = _pipeline_of(repository, step.model)
        if below is not None:
            refuse_circle(repository, below, path)


def pipelines_last(repository: Repository) -> tuple[list[str], list[str]]:
    """The models of a repository: those of their own, and pipelines. One whose configuration
    cannot be read is of the first kind: it will say so itself."""
    names = repository.names()
    pipelines = [name for name in names if _config(repository, name) is not None]
    return [name for name in names if name not in pipelines], pipelines


def _pipeline_of(repository: Repository, name: str) -> Pipeline | None:
    config = _config(repository, name)
    try:
        return read(config) if config is not None else None
    except PipelineError:
        return None


def _config(repository: Repository, name: str) -> ModelConfig | None:
    """Of a pipeline; None for other models, and for what cannot be read."""
    try:
        config = given.read(repository.folder(name), "").config
    except (LoadError, SitsError, OSError):
        return None
    return config if is_pipeline(config) else None


def after(futures: Iterable["Future[None]"], start: Callable[[], "Future[None]"]) -> "Future[None]":
    """What `start` gives, called once all of `futures` have ended, however they did."""
    waiting, result, lock = list(futures), Future[None](), threading.Lock()
    left = len(waiting)

    def ended(_: "Future[None]") -> None:
        nonlocal left
        with lock:
            left -= 1
            if left > 0:
                return
        start().add_done_callback(copy)

    def copy(future: "Future[None]") -> None:
        error = future.exception()
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(None)

    if not waiting:
        return start()
    for future in waiting:
        future.add_done_callback(ended)
    return result
