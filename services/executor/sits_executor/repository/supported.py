"""What config.pbtxt can ask for that this executor does not do: refused at load, by name."""

from collections.abc import Callable
from typing import Final, NamedTuple

from sits_executor.backends.base import LoadError
from sits_protos.oip.model_config_pb2 import (
    ModelConfig,
    ModelInput,
    ModelInstanceGroup,
    ModelOutput,
)


def _tensors(config: ModelConfig) -> list[ModelInput | ModelOutput]:
    return [*config.input, *config.output]


_UNSUPPORTED: Final[tuple[tuple[str, Callable[[ModelConfig], bool]], ...]] = (
    ("sequence_batching", lambda c: c.HasField("sequence_batching")),
    ("model_transaction_policy.decoupled", lambda c: c.model_transaction_policy.decoupled),
    (
        "model_operations.op_library_filename",
        lambda c: bool(c.model_operations.op_library_filename),
    ),
    ("model_repository_agents", lambda c: bool(c.model_repository_agents.agents)),
    ("batch_input", lambda c: bool(c.batch_input)),
    ("batch_output", lambda c: bool(c.batch_output)),
    ("allow_ragged_batch", lambda c: any(i.allow_ragged_batch for i in c.input)),
    ("is_shape_tensor", lambda c: any(t.is_shape_tensor for t in _tensors(c))),
    ("is_non_linear_format_io", lambda c: any(t.is_non_linear_format_io for t in _tensors(c))),
    ("instance_group.passive", lambda c: any(group.passive for group in c.instance_group)),
)

MAX_INSTANCES: Final = 256


class Placement(NamedTuple):
    """`gpu` None = CPU, else the CUDA device index."""

    instances: int
    gpu: int | None


def refuse_unsupported(config: ModelConfig) -> None:
    for name, asked in _UNSUPPORTED:
        if asked(config):
            raise LoadError(f"the configuration asks for {name}, which SITS does not support")


def placement(config: ModelConfig, on_gpu: bool) -> Placement:
    """From `instance_group`. KIND_AUTO follows the executor: `on_gpu` says it runs on one."""
    groups = list(config.instance_group) or [ModelInstanceGroup()]
    wants = {_wants_gpu(group, on_gpu) for group in groups}
    gpus = sorted({gpu for group in groups for gpu in group.gpus})
    if len(wants) > 1 or len(gpus) > 1:
        raise LoadError(
            "instance_group spreads the model over several devices; an executor has one: "
            "start an executor for each device"
        )
    counts = [group.count or 1 for group in groups]
    if any(count < 0 for count in counts) or sum(counts) > MAX_INSTANCES:
        asked = " and ".join(map(str, counts))
        raise LoadError(f"instance_group asks for {asked} instances, expected 1 to {MAX_INSTANCES}")
    return Placement(sum(counts), (gpus[0] if gpus else 0) if wants == {True} else None)


def _wants_gpu(group: ModelInstanceGroup, on_gpu: bool) -> bool:
    if group.kind == ModelInstanceGroup.KIND_GPU:
        return True
    return on_gpu and group.kind in (ModelInstanceGroup.KIND_AUTO, ModelInstanceGroup.KIND_MODEL)
