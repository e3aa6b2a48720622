"""PyTorch on the CPU: every run is one call of the module."""

from collections.abc import Mapping
from contextlib import AbstractContextManager

import torch

from sits_executor.backends.base import Arrays, Parameters, Signature, Stored
from sits_executor.backends.pytorch.faults import translated
from sits_executor.backends.pytorch.model import Model
from sits_executor.backends.pytorch.resident import TorchMemory, tensors_of
from sits_executor.backends.pytorch.tensors import as_array, copied


class EagerBackend:
    """`threads` for each run; they are PyTorch's own and follow the calling thread."""

    signature: Signature | None = None

    def __init__(self, model: Model, threads: int, fallback: str = "") -> None:
        self.model, self.fallback = model, fallback
        self._threads = threads
        self.home = TorchMemory(torch.device("cpu"))

    def run(self, inputs: Arrays, parameters: Parameters) -> Arrays:
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        try:
            with torch.inference_mode():
                tensors = {name: copied(array) for name, array in inputs.items()}
                return {name: as_array(t) for name, t in self.model(tensors).items()}
        except RuntimeError as error:
            raise translated(error) from error

    def run_resident(
        self, inputs: Mapping[str, Stored], parameters: Parameters
    ) -> Mapping[str, Stored]:
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        try:
            return self.model(tensors_of(inputs))
        except RuntimeError as error:
            raise translated(error) from error

    def state_kept(self) -> AbstractContextManager[None]:
        return self.model.state_kept()

    def close(self) -> None:
        del self.model
