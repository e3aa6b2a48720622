"""What a model takes and gives, prepared once a model for checking many requests."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from sits_core.datatypes import element_size
from sits_preprocess.catalog import Model
from sits_preprocess.oip.limits import MAX_ELEMENTS
from sits_protos.oip.grpc_service_pb2 import ModelMetadataResponse


@dataclass(frozen=True, slots=True)
class InputSpec:
    """`dims` include the leading -1 of a model that batches; -1 = any size.

    `element_bytes` is None for BYTES. `lead` says how many of the dims count rows: 1, or 0
    without batching. `row_bytes` is the size of a row, None when rows differ in size.
    """

    name: str
    datatype: str
    dims: tuple[int, ...]
    element_bytes: int | None
    optional: bool
    lead: int = 0
    row_bytes: int | None = None

    def plain_bytes(self, shape: tuple[int, ...]) -> int:
        """Size of an input of that shape; -1 when it cannot have it, or is BYTES."""
        if self.element_bytes is None or len(shape) != len(self.dims):
            return -1
        if self.row_bytes is None:
            return self._counted_bytes(shape, self.element_bytes)
        if not self.lead:
            return self.row_bytes if shape == self.dims else -1
        return shape[0] * self.row_bytes if shape[1:] == self.dims[1:] else -1

    def _counted_bytes(self, shape: tuple[int, ...], element_bytes: int) -> int:
        elements = 1
        for want, got in zip(self.dims, shape, strict=True):
            if want not in (-1, got) or got < 0:
                return -1
            elements *= got
        return elements * element_bytes if 0 < elements <= MAX_ELEMENTS else -1


@dataclass(frozen=True, slots=True)
class Signature:
    """`outputs` maps names to positions in the model's output list. `plain` are all inputs
    in the model's order when each must be there and none is BYTES, else it is empty; `fixed`:
    their rows have one size."""

    model: Model
    inputs: Mapping[str, InputSpec]
    required: frozenset[str]
    outputs: Mapping[str, int]
    max_batch_size: int
    decoupled: bool
    plain: tuple[InputSpec, ...] = ()
    fixed: bool = False


def signature_of(model: Model) -> Signature:
    optional = {spec.name for spec in model.config.input if spec.optional}
    lead = int(model.max_batch_size > 0)
    inputs = {
        tensor.name: _input(tensor, tensor.name in optional, lead)
        for tensor in model.metadata.inputs
    }
    plain = not optional and all(spec.element_bytes is not None for spec in inputs.values())
    return Signature(
        model,
        inputs,
        frozenset(inputs) - optional,
        {tensor.name: index for index, tensor in enumerate(model.metadata.outputs)},
        model.max_batch_size,
        model.config.model_transaction_policy.decoupled,
        tuple(inputs.values()) if plain else (),
        plain and all(spec.row_bytes is not None for spec in inputs.values()),
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
