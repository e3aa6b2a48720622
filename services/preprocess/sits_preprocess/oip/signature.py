"""What a model takes and gives, prepared once a model for checking many requests."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from sits_core.datatypes import element_size
from sits_preprocess.catalog import Model
from sits_protos.oip.grpc_service_pb2 import ModelMetadataResponse


@dataclass(frozen=True, slots=True)
class InputSpec:
    """`dims` include the leading -1 of a model that batches; -1 = any size.

    `element_bytes` is None for BYTES. `lead` and `row_bytes` are for inputs that have one size
    a row: how many of the dims count rows (1, or 0 without batching), and that size.
    """

    name: str
    datatype: str
    dims: tuple[int, ...]
    element_bytes: int | None
    optional: bool
    lead: int = 0
    row_bytes: int | None = None

    def plain_bytes(self, shape: tuple[int, ...]) -> int:
        """Size of an input with one size a row; -1 when it has none, or cannot have `shape`."""
        if self.row_bytes is None or len(shape) != len(self.dims):
            return -1
        if not self.lead:
            return self.row_bytes if shape == self.dims else -1
        return shape[0] * self.row_bytes if shape[1:] == self.dims[1:] else -1


@dataclass(frozen=True, slots=True)
class Signature:
    """`outputs` maps names to positions in the model's output list. `plain` are all inputs
    in the model's order when each must be there and has one size a row; else it is empty."""

    model: Model
    inputs: Mapping[str, InputSpec]
    required: frozenset[str]
    outputs: Mapping[str, int]
    max_batch_size: int
    decoupled: bool
    plain: tuple[InputSpec, ...] = ()


def signature_of(model: Model) -> Signature:
    optional = {spec.name for spec in model.config.input if spec.optional}
    lead = int(model.max_batch_size > 0)
    inputs = {
        tensor.name: _input(tensor, tensor.name in optional, lead)
        for tensor in model.metadata.inputs
    }
    plain = not optional and all(spec.row_bytes is not None for spec in inputs.values())
    return Signature(
        model,
        inputs,
        frozenset(inputs) - optional,
        {tensor.name: index for index, tensor in enumerate(model.metadata.outputs)},
        model.max_batch_size,
        model.config.model_transaction_policy.decoupled,
        tuple(inputs.values()) if plain else (),
    )


def _input(tensor: ModelMetadataResponse.TensorMetadata, optional: bool, lead: int) -> InputSpec:
    dims, size = tuple(tensor.shape), element_size(tensor.datatype)
    row = dims[lead:]
    row_bytes = None if size is None or -1 in row else math.prod(row) * size
    return InputSpec(tensor.name, tensor.datatype, dims, size, optional, lead, row_bytes)


class Signatures:
    """Remembers one signature for each name and version; a reloaded model replaces its own.

    Bounded by the catalog: only models found there are asked for.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Signature] = {}

    def of(self, model: Model) -> Signature:
        key = (model.name, model.version)
        known = self._known.get(key)
        if known is None or known.model is not model:
            known = self._known[key] = signature_of(model)
        return known
