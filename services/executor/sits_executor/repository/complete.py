"""Completes a configuration from what the model itself declares. Pure.

As Triton's autofill does: what is written stays, what is missing comes from the model. A
model batches when all its inputs and outputs share one symbolic first dimension that
occurs nowhere else, or when max_batch_size says so.
"""

from collections.abc import Iterable, Sequence

from sits_executor.backends.base import Dim, LoadError, Signature, TensorSpec
from sits_executor.contract import DATATYPES
from sits_executor.repository.given import Given
from sits_executor.repository.supported import Placement
from sits_protos.oip.model_config_pb2 import (
    ModelConfig,
    ModelDynamicBatching,
    ModelInput,
    ModelInstanceGroup,
    ModelOutput,
    ModelVersionPolicy,
)

_BY_DATATYPE = {datatype: number for number, datatype in DATATYPES.items()}


def complete(
    given: Given, signature: Signature | None, placement: Placement, default_max_batch: int
) -> ModelConfig:
    """A new configuration with nothing left open. Raises `LoadError` when it cannot be known."""
    config = ModelConfig()
    config.CopyFrom(given.config)
    if signature is not None:
        _complete_batching(config, given.says_max_batch, signature, default_max_batch)
        batches = config.max_batch_size > 0
        if not config.input:
            config.input.extend(_input(spec, batches) for spec in signature.inputs)
        if not config.output:
            config.output.extend(_output(spec, batches) for spec in signature.outputs)
    if not config.HasField("version_policy"):
        config.version_policy.latest.CopyFrom(ModelVersionPolicy.Latest(num_versions=1))
    _complete_instances(config, placement)
    return config


def complete_pipeline(given: Given) -> ModelConfig:
    """A pipeline's own: nothing but the versions can be known from elsewhere."""
    config = ModelConfig()
    config.CopyFrom(given.config)
    if not config.HasField("version_policy"):
        config.version_policy.latest.CopyFrom(ModelVersionPolicy.Latest(num_versions=1))
    return config


def shares_first_dimension(signature: Signature) -> bool:
    """Whether one named size leads every tensor and occurs nowhere else."""
    shapes = [spec.shape for spec in (*signature.inputs, *signature.outputs)]
    firsts = {shape[0] if shape else None for shape in shapes}
    if len(firsts) != 1 or not isinstance(first := firsts.pop(), str):
        return False
    return not any(first in shape[1:] for shape in shapes if shape)


def _complete_batching(
    config: ModelConfig, says_max_batch: bool, signature: Signature, default_max_batch: int
) -> None:
    if says_max_batch or not shares_first_dimension(signature):
        return
    if not _without_rows(config, signature):
        return
    config.max_batch_size = default_max_batch
    if config.WhichOneof("scheduling_choice") is None:
        config.dynamic_batching.CopyFrom(ModelDynamicBatching())


def _without_rows(config: ModelConfig, signature: Signature) -> bool:
    """Whether all shapes that are written leave the first dimension out."""
    ranks = {s.name: len(s.shape) for s in (*signature.inputs, *signature.outputs) if s.shape}
    written: Iterable[ModelInput | ModelOutput] = (*config.input, *config.output)
    return all(_rank(entry) == ranks.get(entry.name, 0) - 1 for entry in written)


def _rank(entry: ModelInput | ModelOutput) -> int:
    return len(entry.reshape.shape if entry.HasField("reshape") else entry.dims)


def _complete_instances(config: ModelConfig, placement: Placement) -> None:
    """Say where it runs, also when the configuration left that to us."""
    on_gpu = placement.gpu is not None
    kind = ModelInstanceGroup.KIND_GPU if on_gpu else ModelInstanceGroup.KIND_CPU
    if not config.instance_group:
        config.instance_group.add(name=f"{config.name}_0")
    for group in config.instance_group:
        group.kind, group.count = kind, max(1, group.count)
        if not on_gpu:
            del group.gpus[:]


def _input(spec: TensorSpec, batches: bool) -> ModelInput:
    return ModelInput(
        name=spec.name,
        data_type=_BY_DATATYPE[spec.datatype],
        dims=_dims(spec, batches),
        optional=spec.optional,
    )


def _output(spec: TensorSpec, batches: bool) -> ModelOutput:
    return ModelOutput(
        name=spec.name, data_type=_BY_DATATYPE[spec.datatype], dims=_dims(spec, batches)
    )


def _dims(spec: TensorSpec, batches: bool) -> list[int]:
    shape: Sequence[Dim] = spec.shape or ()
    if batches and not shape:
        raise LoadError(
            f"the model does not tell the shape of '{spec.name}': write its dims in config.pbtxt"
        )
    return [dim if isinstance(dim, int) else -1 for dim in shape[batches:]]
