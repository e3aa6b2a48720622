"""Pipelines that no executor has whole: which there are, and what they are made of.

An executor that lacks a step announces its pipeline as unavailable, with its configuration. When
the steps are all served somewhere, the dispatcher runs them one after the other, and announces
the pipeline itself.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from sits_core.pipeline import Pipeline, PipelineError, Step, check_models, is_pipeline, read
from sits_dispatcher.job import model_key
from sits_protos.oip.model_config_pb2 import DataType, ModelConfig, ModelInput, ModelOutput
from sits_protos.v1.link_pb2 import Catalog, ModelEntry, ModelState
from sits_scheduling.candidates import ExecutorTable

log = structlog.get_logger()

_SMOOTHING: Final = 0.2


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """`types` are the datatypes of the model's inputs; `outputs` maps its names to tensors."""

    step: Step
    version: str
    types: Mapping[str, str]

    @property
    def key(self) -> str:
        return model_key(self.step.model, self.version)


@dataclass(slots=True, eq=False)
class Plan:
    """`types` are the datatypes of the pipeline's outputs, in order. `row_bytes` are those of each
    step's inputs, learnt from the batches that came by."""

    entry: ModelEntry
    pipeline: Pipeline
    steps: tuple[PlannedStep, ...]
    types: Mapping[str, str]
    row_bytes: dict[int, float] = field(default_factory=dict)

    def learn(self, step: int, row_bytes: float) -> None:
        before = self.row_bytes.get(step, row_bytes)
        self.row_bytes[step] = before + _SMOOTHING * (row_bytes - before)


class Pipelines:
    """Those that are run from here. Not thread-safe: the dispatcher's lock covers it."""

    def __init__(self) -> None:
        self._plans: dict[str, Plan] = {}

    def find(self, key: str) -> Plan | None:
        return self._plans.get(key)

    def follow(self, catalog: Catalog) -> Catalog:
        """The catalog as it is told to fronts: pipelines that can be run from here are ready."""
        ready = _ready(catalog)
        before, self._plans = self._plans, {}
        for entry in catalog.models:
            if entry.state != ModelState.MODEL_STATE_READY and entry.config:
                self._plan(entry, ready, before)
        return catalog

    def capacity(self, key: str, table: ExecutorTable) -> tuple[int, int, int]:
        """Slots, parallel runs and row limit: of a pipeline those of its narrowest step."""
        plan = self._plans.get(key)
        if plan is None:
            return table.capacity(key)
        found = [table.capacity(step.key) for step in plan.steps]
        limits = [rows for _, _, rows in found if rows]
        return min(f[0] for f in found), min(f[1] for f in found), min(limits, default=0)

    def _plan(
        self, entry: ModelEntry, ready: Mapping[str, list[ModelEntry]], before: Mapping[str, Plan]
    ) -> None:
        try:
            plan = planned(entry, ready)
        except PipelineError as error:
            entry.reason = f"{entry.reason}; over several executors: {error}"
            return
        if plan is None:
            return
        key = model_key(entry.name, entry.version)
        known = before.get(key)
        if known is not None:
            plan.row_bytes = known.row_bytes
        else:
            log.info("pipeline.spread", model=key, steps=[step.key for step in plan.steps])
        entry.state, entry.reason = ModelState.MODEL_STATE_READY, ""
        self._plans[key] = plan


def planned(entry: ModelEntry, ready: Mapping[str, list[ModelEntry]]) -> Plan | None:
    """None when it is no pipeline. Raises `PipelineError` when a step is served nowhere, or the
    steps do not fit."""
    config = ModelConfig.FromString(entry.config)
    if not is_pipeline(config):
        return None
    pipeline = read(config)
    models = {step.number: _served(step, ready) for step in pipeline.steps}
    configs = {number: ModelConfig.FromString(m.config) for number, m in models.items()}
    check_models(config, pipeline, configs)
    steps = tuple(
        PlannedStep(step, models[step.number].version, _types(configs[step.number].input))
        for step in pipeline.steps
    )
    return Plan(entry, pipeline, steps, _types(config.output))


def _ready(catalog: Catalog) -> dict[str, list[ModelEntry]]:
    """By name, the newest version last."""
    found: dict[str, list[ModelEntry]] = {}
    for entry in sorted(catalog.models, key=lambda e: int(e.version or 0)):
        if entry.state == ModelState.MODEL_STATE_READY:
            found.setdefault(entry.name, []).append(entry)
    return found


def _served(step: Step, ready: Mapping[str, list[ModelEntry]]) -> ModelEntry:
    found = [e for e in ready.get(step.model, []) if step.version in ("", e.version)]
    if not found:
        raise PipelineError(f"{step} is ready on no executor")
    return found[-1]


def _types(entries: Iterable[ModelInput | ModelOutput]) -> dict[str, str]:
    """Datatypes as tensors carry them, by name."""
    names = {e.name: DataType.Name(e.data_type).removeprefix("TYPE_") for e in entries}
    return {name: "BYTES" if found == "STRING" else found for name, found in names.items()}
