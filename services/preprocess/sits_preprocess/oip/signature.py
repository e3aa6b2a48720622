"""What a model takes and gives, prepared once a model for checking many requests."""

from collections.abc import Mapping
from dataclasses import dataclass

from sits_core.datatypes import element_size
from sits_preprocess.catalog import Model


@dataclass(frozen=True, slots=True)
class InputSpec:
    """`dims` include the leading -1 of a model that batches; -1 = any size.

    `element_bytes` is None for BYTES.
    """

    name: str
    datatype: str
    dims: tuple[int, ...]
    element_bytes: int | None
    optional: bool


@dataclass(frozen=True, slots=True)
class Signature:
    """`outputs` maps names to positions in the model's output list."""

    model: Model
    inputs: Mapping[str, InputSpec]
    required: frozenset[str]
    outputs: Mapping[str, int]
    max_batch_size: int
    decoupled: bool


def signature_of(model: Model) -> Signature:
    optional = {spec.name for spec in model.config.input if spec.optional}
    inputs = {
        tensor.name: InputSpec(
            tensor.name,
            tensor.datatype,
            tuple(tensor.shape),
            element_size(tensor.datatype),
            tensor.name in optional,
        )
        for tensor in model.metadata.inputs
    }
    return Signature(
        model,
        inputs,
        frozenset(inputs) - optional,
        {tensor.name: index for index, tensor in enumerate(model.metadata.outputs)},
        model.max_batch_size,
        model.config.model_transaction_policy.decoupled,
    )


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
