"""`ensemble_scheduling` of a model configuration: read into steps in a running order, and checked
against the models it is made of. Pure.

The rules are Triton's (`ensemble_utils.cc`, `model_config_utils.cc`), with one more freedom:
a tensor may pass between FP32, FP16 and BF16, which is then converted on its way.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sits_protos.oip.model_config_pb2 import (
    TYPE_BF16,
    TYPE_FP16,
    TYPE_FP32,
    DataType,
    ModelConfig,
    ModelEnsembling,
    ModelInput,
    ModelOutput,
)

PLATFORM: Final = "ensemble"
CONVERTIBLE: Final = frozenset((TYPE_FP32, TYPE_FP16, TYPE_BF16))
"""Precisions of the same numbers: a tensor may change from one to another between steps."""

Entry = ModelInput | ModelOutput


class PipelineError(ValueError):
    """Names the tensor, step or field, what was expected and what is there. Safe to show."""


@dataclass(frozen=True, slots=True)
class Step:
    """`version` empty = the newest that is ready. `inputs` and `outputs` map names of the model
    to tensors of the pipeline. `number` is its place as written, from 1."""

    number: int
    model: str
    version: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]

    def __str__(self) -> str:
        return f"step {self.number} (model '{self.model}')"


@dataclass(frozen=True, slots=True)
class Pipeline:
    """`steps` in an order in which each finds its inputs made; those that could run in any order
    stay as written. `inputs` and `outputs` are tensors of the pipeline itself."""

    name: str
    steps: tuple[Step, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def is_pipeline(config: ModelConfig) -> bool:
    return config.platform == PLATFORM or config.HasField("ensemble_scheduling")


def read(config: ModelConfig) -> Pipeline:
    """What can be known without the models. Raises `PipelineError`."""
    _check_whole(config)
    inputs = tuple(entry.name for entry in config.input)
    outputs = tuple(entry.name for entry in config.output)
    steps = [_step(number, step) for number, step in enumerate(config.ensemble_scheduling.step, 1)]
    _check_tensors(inputs, outputs, steps)
    return Pipeline(config.name, tuple(_ordered(inputs, steps)), inputs, outputs)


def check_models(
    config: ModelConfig, pipeline: Pipeline, models: Mapping[int, ModelConfig]
) -> None:
    """That the models, by number of their step, fit each other and the pipeline.

    Raises `PipelineError`.
    """
    known: dict[str, _Tensor] = {}
    entries: tuple[Entry, ...] = (*config.input, *config.output)
    for entry in entries:
        known[entry.name] = _tensor(entry, config, f"pipeline '{config.name}'", inner=True)
    optional = {entry.name for entry in config.input if entry.optional}
    for step in pipeline.steps:
        model = models[step.number]
        _check_rows(config, step, model)
        _check_inputs(step, model, known, optional)
        _check_outputs(step, model, known)


# by itself


def _check_whole(config: ModelConfig) -> None:
    if config.platform != PLATFORM:
        raise PipelineError(
            f"ensemble_scheduling needs platform '{PLATFORM}', got '{config.platform}'"
        )
    if not config.ensemble_scheduling.step:
        raise PipelineError("ensemble_scheduling has no step")
    if config.instance_group:
        raise PipelineError("instance_group is not for ensembles: their steps have their own")
    for side, entries in (("input", config.input), ("output", config.output)):
        if not entries:
            raise PipelineError(f"the configuration names no {side}")


def _step(number: int, step: ModelEnsembling.Step) -> Step:
    own = Step(
        number,
        step.model_name,
        str(step.model_version) if step.model_version > 0 else "",
        dict(sorted(step.input_map.items())),
        dict(sorted(step.output_map.items())),
    )
    if not own.model:
        raise PipelineError(f"step {number} has no model_name")
    if step.model_namespace:
        raise PipelineError(f"{own} asks for a model_namespace, which SITS does not have")
    if step.model_version < -1:
        raise PipelineError(f"{own} has model_version {step.model_version}, expected -1 or above 0")
    for field, names in (("input_map", own.inputs), ("output_map", own.outputs)):
        if not names:
            raise PipelineError(f"{own} has no {field}")
        if empty := next((key for key, value in names.items() if not key or not value), None):
            raise PipelineError(f"{own} maps '{empty}' of its {field} to nothing")
    return own


def _check_tensors(inputs: Sequence[str], outputs: Sequence[str], steps: Sequence[Step]) -> None:
    made: dict[str, str] = dict.fromkeys(inputs, "the request")
    for step in steps:
        for tensor in step.outputs.values():
            if tensor in made:
                raise PipelineError(f"tensor '{tensor}' comes from {made[tensor]} and from {step}")
            made[tensor] = str(step)
    for step in steps:
        if missing := next((t for t in step.inputs.values() if t not in made), None):
            raise PipelineError(f"{step} needs tensor '{missing}', which no step makes")
    if missing := next((tensor for tensor in outputs if tensor not in made), None):
        raise PipelineError(f"output '{missing}' is made by no step")
    used = {tensor for step in steps for tensor in step.inputs.values()}
    if unused := next((tensor for tensor in inputs if tensor not in used), None):
        raise PipelineError(f"input '{unused}' is used by no step")


def _ordered(inputs: Sequence[str], steps: Sequence[Step]) -> Iterable[Step]:
    """Kahn's order, the first as written among those that could be next."""
    there, left = set(inputs), list(steps)
    while left:
        step = next((s for s in left if there.issuperset(s.inputs.values())), None)
        if step is None:
            names = ", ".join(str(s) for s in left)
            raise PipelineError(f"the steps wait for each other in a circle: {names}")
        left.remove(step)
        there.update(step.outputs.values())
        yield step


# against the models


@dataclass(frozen=True, slots=True)
class _Tensor:
    """`shape` with the rows, where its owner batches, as -1."""

    datatype: DataType.ValueType
    shape: tuple[int, ...]
    owner: str


def _tensor(entry: Entry, config: ModelConfig, owner: str, *, inner: bool = False) -> _Tensor:
    """`inner`: a pipeline that is reshaped hands on what its model would see."""
    dims = entry.reshape.shape if inner and entry.HasField("reshape") else entry.dims
    lead = (-1,) if config.max_batch_size > 0 else ()
    return _Tensor(entry.data_type, (*lead, *dims), owner)


def _check_rows(config: ModelConfig, step: Step, model: ModelConfig) -> None:
    if model.model_transaction_policy.decoupled:
        raise PipelineError(f"{step} is decoupled, which a pipeline cannot be made of")
    if 0 < model.max_batch_size < config.max_batch_size:
        raise PipelineError(
            f"max_batch_size is {config.max_batch_size}, but {step} takes at most "
            f"{model.max_batch_size} rows"
        )


def _check_inputs(
    step: Step, model: ModelConfig, known: dict[str, _Tensor], optional: set[str]
) -> None:
    entries = {entry.name: entry for entry in model.input}
    if unknown := next((name for name in step.inputs if name not in entries), None):
        raise PipelineError(
            f"{step} maps input '{unknown}', which its model does not have: {', '.join(entries)}"
        )
    for name, entry in entries.items():
        tensor = step.inputs.get(name)
        if tensor is None and not entry.optional:
            raise PipelineError(f"{step} maps no tensor to input '{name}'")
        if tensor in optional and not entry.optional:
            raise PipelineError(f"input '{tensor}' is optional, but {step} needs it as '{name}'")
        if tensor is not None:
            _meet(known, tensor, _tensor(entry, model, str(step)))


def _check_outputs(step: Step, model: ModelConfig, known: dict[str, _Tensor]) -> None:
    entries = {entry.name: entry for entry in model.output}
    for name, tensor in step.outputs.items():
        if name not in entries:
            raise PipelineError(
                f"{step} maps output '{name}', which its model does not have: {', '.join(entries)}"
            )
        _meet(known, tensor, _tensor(entries[name], model, str(step)))


def _meet(known: dict[str, _Tensor], name: str, own: _Tensor) -> None:
    """What two ends of a tensor say about it must fit; -1 fits any size."""
    other = known.setdefault(name, own)
    if own.datatype != other.datatype and not CONVERTIBLE.issuperset(
        (own.datatype, other.datatype)
    ):
        raise PipelineError(
            f"tensor '{name}' is {DataType.Name(other.datatype)} of {other.owner}, but "
            f"{DataType.Name(own.datatype)} of {own.owner}"
        )
    if not _fit(own.shape, other.shape):
        raise PipelineError(
            f"tensor '{name}' has shape {list(other.shape)} of {other.owner}, but "
            f"{list(own.shape)} of {own.owner} (the first -1 of a model that batches is its rows)"
        )


def _fit(one: Sequence[int], other: Sequence[int]) -> bool:
    return len(one) == len(other) and all(
        a == b or -1 in (a, b) for a, b in zip(one, other, strict=True)
    )
