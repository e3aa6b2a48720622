"""Makes a pipeline of models that are loaded."""

from collections.abc import Callable
from typing import Final, Protocol

from sits_core.errors import SitsError
from sits_core.pipeline import PLATFORM, Pipeline, PipelineError, Step, check_models
from sits_executor.backends.base import Backend, LoadError, LoadSpec, Resident
from sits_executor.backends.choice import Choice
from sits_executor.contract import Contract, contract_of
from sits_executor.pipelines.backend import PipelineBackend, memory_of
from sits_executor.pipelines.graph import Graph, Node
from sits_executor.pipelines.host import HOST
from sits_executor.pipelines.program import OpenStep
from sits_executor.repository.sharing import Shared
from sits_protos.oip.model_config_pb2 import ModelConfig
from sits_protos.v1.link_pb2 import ModelEntry


def _not_opened(spec: LoadSpec) -> Backend:
    raise LoadError(f"pipeline '{spec.model}' is made of its steps, not opened from a file")


NO_BACKEND: Final = Choice("", PLATFORM, "", _not_opened)


class StepsMissing(LoadError):
    """The pipeline is right as far as can be seen, but a model of it is not ready here."""


class Loaded(Protocol):
    """What is needed of a loaded model."""

    @property
    def entry(self) -> ModelEntry: ...
    @property
    def contract(self) -> Contract: ...
    @property
    def shared(self) -> Shared: ...


Find = Callable[[str, str], Loaded]
"""By name and version, empty = the newest. Raises `SitsError` when it is not ready."""
Ran = Callable[[str], Callable[[float], None]]
"""By model: what counts a run of so many seconds."""


def open_pipeline(
    config: ModelConfig, pipeline: Pipeline, version: str, find: Find, ran: Ran
) -> PipelineBackend:
    """Holds the models of the steps until it is closed. Raises `LoadError`."""
    models = {step.number: _found(step, find) for step in pipeline.steps}
    configs = {n: ModelConfig.FromString(model.entry.config) for n, model in models.items()}
    try:
        check_models(config, pipeline, configs)
    except PipelineError as error:
        raise LoadError(str(error)) from None
    own, ordered = contract_of(config, version), [models[step.number] for step in pipeline.steps]
    nodes = [
        Node(step, model.contract, memory_of(model.shared.backend))
        for step, model in zip(pipeline.steps, ordered, strict=True)
    ]
    _hold(pipeline, ordered)
    return PipelineBackend(
        Graph(pipeline, own, nodes, HOST), own, tuple(_opened(model, ran) for model in ordered)
    )


def _found(step: Step, find: Find) -> Loaded:
    try:
        return find(step.model, step.version)
    except SitsError as error:
        raise StepsMissing(f"{step} is not ready here: {error.message}") from None


def _hold(pipeline: Pipeline, models: list[Loaded]) -> None:
    """All of them, or none."""
    for index, model in enumerate(models):
        if not model.shared.take():
            for held in models[:index]:
                held.shared.release()
            raise StepsMissing(f"{pipeline.steps[index]} is being unloaded")


def _opened(model: Loaded, ran: Ran) -> OpenStep:
    backend = model.shared.backend
    resident = backend if isinstance(backend, Resident) else None
    return OpenStep(model.shared, ran(model.entry.name), resident)
