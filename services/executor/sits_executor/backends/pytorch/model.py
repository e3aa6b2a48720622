"""A PyTorch module under the names of config.pbtxt: tensors in, tensors out."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch

from sits_executor.backends.base import LoadError
from sits_executor.backends.pytorch.archives import Opened
from sits_executor.backends.pytorch.naming import call_order, named_results, result_order
from sits_executor.contract import DATATYPES
from sits_protos.oip.model_config_pb2 import DataType, ModelConfig, ModelInput, ModelOutput

Tensors = Mapping[str, torch.Tensor]
_HALVES: Final = {torch.float16: "FP16", torch.bfloat16: "BF16"}


@dataclass(frozen=True, slots=True)
class Model:
    """`inputs` in the order of the call, `outputs` in that of a returned tuple."""

    module: torch.nn.Module
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def __call__(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        """Whatever the module raises; `ValueError` when its results are not the outputs."""
        return named_results(self.module(*[tensors[name] for name in self.inputs]), self.outputs)

    @property
    def precision(self) -> str:
        """That of its weights; FP32 where it has none, or others."""
        types = {tensor.dtype for tensor in self.module.parameters()}
        return next((_HALVES[dtype] for dtype in _HALVES if dtype in types), "FP32")

    @contextmanager
    def state_kept(self) -> Iterator[None]:
        """What a run may change, buffers such as a counter, is afterwards as it was."""
        buffers = list(self.module.buffers())
        before = [buffer.clone() for buffer in buffers]
        try:
            yield
        finally:
            with torch.inference_mode():
                for buffer, value in zip(buffers, before, strict=True):
                    buffer.copy_(value)


def named(config: ModelConfig, opened: Opened) -> Model:
    """Raises `LoadError` for what PyTorch models cannot take."""
    if not config.input or not config.output:
        raise LoadError(
            "a PyTorch model does not tell its inputs and outputs: write them in config.pbtxt"
        )
    entries: list[ModelInput | ModelOutput] = [*config.input, *config.output]
    for entry in entries:
        if DATATYPES.get(entry.data_type, "BYTES") == "BYTES":
            raise LoadError(
                f"'{entry.name}' is {DataType.Name(entry.data_type)}, expected a type that "
                "PyTorch has tensors of"
            )
    if optional := [entry.name for entry in config.input if entry.optional]:
        raise LoadError(f"input '{optional[0]}' is optional, which PyTorch models cannot have")
    return Model(
        opened.module,
        call_order([entry.name for entry in config.input], opened.arguments),
        result_order([entry.name for entry in config.output]),
    )
