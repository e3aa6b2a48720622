"""What a loaded model takes and gives, in the form that the hot path reads."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sits_core.datatypes import BYTES
from sits_protos.oip.model_config_pb2 import (
    TYPE_BF16,
    TYPE_BOOL,
    TYPE_FP16,
    TYPE_FP32,
    TYPE_FP64,
    TYPE_INT8,
    TYPE_INT16,
    TYPE_INT32,
    TYPE_INT64,
    TYPE_STRING,
    TYPE_UINT8,
    TYPE_UINT16,
    TYPE_UINT32,
    TYPE_UINT64,
    ModelConfig,
    ModelInput,
    ModelOutput,
)

DATATYPES: Final = {
    TYPE_BOOL: "BOOL",
    TYPE_UINT8: "UINT8",
    TYPE_UINT16: "UINT16",
    TYPE_UINT32: "UINT32",
    TYPE_UINT64: "UINT64",
    TYPE_INT8: "INT8",
    TYPE_INT16: "INT16",
    TYPE_INT32: "INT32",
    TYPE_INT64: "INT64",
    TYPE_FP16: "FP16",
    TYPE_FP32: "FP32",
    TYPE_FP64: "FP64",
    TYPE_BF16: "BF16",
    TYPE_STRING: BYTES,
}
"""Datatype of config.pbtxt → datatype of the Open Inference Protocol."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorContract:
    """`dims` are without the rows; -1 = any size. `inner` is the shape the model itself uses,
    when `reshape` makes it another one."""

    name: str
    datatype: str
    dims: Shape
    inner: Shape | None
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Contract:
    """`max_rows` 0 = the model does not batch: a batch is one request, shapes are literal.
    `content`: digest of what it was loaded from, for the front doors' response cache."""

    model: str
    version: str
    max_rows: int
    inputs: dict[str, TensorContract]
    outputs: tuple[TensorContract, ...]
    content: bytes = b""

    @property
    def batches(self) -> bool:
        return self.max_rows > 0


def contract_of(config: ModelConfig, version: str, content: bytes = b"") -> Contract:
    """From a completed configuration."""
    return Contract(
        model=config.name,
        version=version,
        max_rows=config.max_batch_size,
        inputs={entry.name: _tensor(entry, entry.optional) for entry in config.input},
        outputs=tuple(_tensor(entry, False) for entry in config.output),
        content=content,
    )


def fits(shape: Sequence[int], dims: Shape) -> bool:
    """Whether `shape` is one of those that `dims` allows."""
    if len(shape) != len(dims):
        return False
    for size, dim in zip(shape, dims, strict=True):  # noqa: SIM110 - a generator costs more
        if dim not in (-1, size):
            return False
    return True


def reshaped(shape: Shape, source: Shape, target: Shape) -> Shape:
    """`shape`, which fits `source`, in the form of `target`: variable sizes keep their order."""
    free = iter([size for size, dim in zip(shape, source, strict=True) if dim == -1])
    return tuple(next(free) if dim == -1 else dim for dim in target)


def _tensor(entry: ModelInput | ModelOutput, optional: bool) -> TensorContract:
    inner = tuple(entry.reshape.shape) if entry.HasField("reshape") else None
    return TensorContract(
        entry.name, DATATYPES[entry.data_type], tuple(entry.dims), inner, optional
    )
