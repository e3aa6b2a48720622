"""One model version of the Triton server, as any other backend."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import tritonclient.grpc as triton

from sits_core.datatypes import Array
from sits_core.errors import Internal, InvalidArgument, NotFound
from sits_executor.backends.base import Arrays, Parameters, Signature, Unserved
from sits_executor.contract import Contract
from sits_executor.triton.memory import Place, SharedInputs
from sits_executor.triton.server import TritonServer

_RESERVED: Final = frozenset(
    {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers",
     "binary_data_output"}
)  # fmt: skip
_RESERVED_PREFIX: Final = "triton_"
_OURS: Final = "sits_"
"""Parameters that are for the mesh, or that Triton keeps for itself, are not passed on."""


class TritonBackend:
    """Every run is one request to the server. Its batcher sees whole batches of ours.

    `lost` is called when the server could not be reached, so that somebody looks at once.
    """

    signature: Signature | None = None
    fallback = ""

    def __init__(
        self, server: TritonServer, contract: Contract, memory: SharedInputs,
        lost: Callable[[], object],
    ) -> None:  # fmt: skip
        self._server, self._contract, self._memory, self._lost = server, contract, memory, lost
        self._outputs = [triton.InferRequestedOutput(out.name) for out in contract.outputs]

    def run(self, inputs: Arrays, parameters: Parameters) -> Arrays:
        """Raises `Unserved` while the server is away, else what it answered."""
        try:
            answer = self._asked(inputs, parameters)
        except Unserved:
            self._lost()
            raise
        return {out.name: _array(answer, out.name) for out in self._contract.outputs}

    def _asked(self, inputs: Arrays, parameters: Parameters) -> Any:
        """A server that was started anew refuses our regions: then everything goes inline."""
        with self._memory.of(inputs) as shared:
            try:
                return self._infer(inputs, parameters, shared)
            except (InvalidArgument, NotFound, Internal):
                if not shared:
                    raise
                self._memory.forget()
                return self._infer(inputs, parameters, {})

    def _infer(self, inputs: Arrays, parameters: Parameters, shared: Mapping[str, Place]) -> Any:
        tensors = [self._tensor(name, array, shared) for name, array in inputs.items()]
        model, version = self._contract.model, self._contract.version
        passed_on = _passed_on(parameters)
        return self._server.infer(model, version, tensors, self._outputs, passed_on)

    def close(self) -> None:
        self._memory.close()

    def _tensor(self, name: str, array: Array, shared: Mapping[str, Place]) -> Any:
        tensor = triton.InferInput(name, list(array.shape), self._contract.inputs[name].datatype)
        if name in shared:
            place = shared[name]
            tensor.set_shared_memory(place.region, place.size_bytes, place.offset)
        else:
            tensor.set_data_from_numpy(array)
        return tensor


def _array(answer: Any, name: str) -> Array:
    found: Array | None = answer.as_numpy(name)
    if found is None:
        raise Internal(f"Triton gave no output '{name}'", reason="BAD_RESULT")
    return found


def _passed_on(parameters: Parameters) -> Parameters:
    return {
        key: value
        for key, value in parameters.items()
        if key not in _RESERVED and not key.startswith((_RESERVED_PREFIX, _OURS))
    }
