"""Checks a completed configuration, by itself and against the model. Pure."""

from collections.abc import Iterable, Sequence

from sits_executor.backends.base import Dim, LoadError, Signature, TensorSpec
from sits_executor.contract import DATATYPES
from sits_protos.oip.model_config_pb2 import DataType, ModelConfig, ModelInput, ModelOutput

Entry = ModelInput | ModelOutput


def check(config: ModelConfig, signature: Signature | None) -> None:
    """Raises `LoadError` that names the field, what was expected and what is there."""
    if config.max_batch_size < 0:
        raise LoadError(f"max_batch_size is {config.max_batch_size}, expected 0 or more")
    _check_preferred(config.dynamic_batching.preferred_batch_size, config.max_batch_size)
    _check_entries("input", config.input, config.max_batch_size > 0)
    _check_entries("output", config.output, config.max_batch_size > 0)
    if signature is not None:
        _check_side("input", config.input, signature.inputs, config.max_batch_size)
        _check_side("output", config.output, signature.outputs, config.max_batch_size)
        _check_inputs_given(config, signature)


def _check_preferred(sizes: Sequence[int], most: int) -> None:
    """Batches that are never that large, or always, would leave at other times than asked for."""
    if any(not 1 <= size <= most for size in sizes):
        raise LoadError(
            f"preferred_batch_size is {list(sizes)}, expected sizes from 1 to {most}, which is "
            "max_batch_size"
        )


def _check_entries(side: str, entries: Sequence[Entry], batches: bool) -> None:
    if not entries:
        raise LoadError(f"the configuration names no {side}, and the model does not tell any")
    names = [entry.name for entry in entries]
    for entry in entries:
        if not entry.name or names.count(entry.name) > 1:
            raise LoadError(f"{side} '{entry.name}' needs a name of its own")
        if entry.data_type not in DATATYPES:
            raise LoadError(f"{side} '{entry.name}' has no data_type")
        _check_dims(side, entry)


def _check_dims(side: str, entry: Entry) -> None:
    if any(dim < -1 or dim == 0 for dim in entry.dims):
        raise LoadError(
            f"{side} '{entry.name}' has dims {list(entry.dims)}, expected sizes above 0, or -1"
        )
    if not entry.HasField("reshape"):
        return
    dims, shape = list(entry.dims), list(entry.reshape.shape)
    if dims.count(-1) != shape.count(-1) or _size(dims) != _size(shape):
        raise LoadError(f"{side} '{entry.name}' cannot be reshaped from {dims} to {shape}")


def _size(dims: Iterable[int]) -> int:
    size = 1
    for dim in dims:
        size *= abs(dim)
    return size


def _check_side(
    side: str, entries: Sequence[Entry], specs: Sequence[TensorSpec], max_batch_size: int
) -> None:
    known = {spec.name: spec for spec in specs}
    for entry in entries:
        if entry.name not in known:
            raise LoadError(
                f"{side} '{entry.name}' of the configuration is not one of the model's: "
                f"{', '.join(known)}"
            )
        _check_entry(side, entry, known[entry.name], max_batch_size)


def _check_entry(side: str, entry: Entry, spec: TensorSpec, max_batch_size: int) -> None:
    if DATATYPES[entry.data_type] != spec.datatype:
        raise LoadError(
            f"{side} '{entry.name}' is {DataType.Name(entry.data_type)} in the configuration, "
            f"the model has {spec.datatype}"
        )
    if spec.shape is None:
        return
    if max_batch_size and not (spec.shape and not isinstance(spec.shape[0], int)):
        raise LoadError(
            f"max_batch_size is {max_batch_size}, but {side} '{entry.name}' of the model has "
            f"shape {_shown(spec.shape)} without a variable first dimension: set "
            "max_batch_size: 0, or export the model with one"
        )
    own = spec.shape[1:] if max_batch_size else spec.shape
    dims = entry.reshape.shape if entry.HasField("reshape") else entry.dims
    if not _compatible(dims, own):
        note = " (the batch dimension is not part of dims)" if max_batch_size else ""
        raise LoadError(
            f"{side} '{entry.name}' has dims {list(dims)} in the configuration, "
            f"the model has {_shown(own)}{note}"
        )


def _compatible(dims: Sequence[int], shape: Sequence[Dim]) -> bool:
    return len(dims) == len(shape) and all(
        not isinstance(own, int) or own == dim for dim, own in zip(dims, shape, strict=True)
    )


def _check_inputs_given(config: ModelConfig, signature: Signature) -> None:
    written = {entry.name for entry in config.input}
    missing = [s.name for s in signature.inputs if s.name not in written and not s.optional]
    if missing:
        raise LoadError(f"the model needs input '{missing[0]}', the configuration lacks it")


def _shown(shape: Sequence[Dim]) -> str:
    return str([dim if isinstance(dim, int) else -1 for dim in shape])
