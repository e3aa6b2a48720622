"""An answer put into the form its client asked for, before it becomes a message."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from sits_core.errors import Internal, ResourceExhausted, SitsError
from sits_preprocess.oip.classification import classify
from sits_preprocess.oip.outputs import RegionRange, Wanted
from sits_preprocess.oip.signature import Signature
from sits_preprocess.request import NO_PARAMETERS, Answer, Parameters, Request, TensorData

OVERHEAD_BYTES = 4096
"""Room for everything in a response that is not tensor data, for each output."""
NO_PLACES: Final[Mapping[str, RegionRange]] = MappingProxyType({})


class Result(NamedTuple):
    """What every protocol of ours builds its response from. Either outputs or an error.

    `places` names the outputs that lie in the client's shared memory; their data is empty.
    `explanation`: why it ran where it ran, where that was asked for.
    """

    id: str
    model: str = ""
    version: str = ""
    outputs: Sequence[TensorData] = ()
    places: Mapping[str, RegionRange] = NO_PLACES
    parameters: Parameters = NO_PARAMETERS
    error: SitsError | None = None
    explanation: str = ""


def result_of(request: Request, answer: Answer, max_bytes: int) -> Result:
    """Raises what must be answered instead, such as a response larger than `max_bytes`."""
    signature, outputs, places = request.signature, answer.outputs, NO_PLACES
    if answer.error is not None or signature is None:
        return Result(request.id, error=answer.error or Internal("internal error"))
    if request.wanted:
        outputs, places = _arrange(signature, outputs, request.wanted)
    size = sum([len(output.data) for output in outputs], OVERHEAD_BYTES * len(outputs))
    if size > max_bytes:
        raise ResourceExhausted(
            f"response of model '{signature.model.name}' takes {size} bytes, larger than the "
            f"limit of {max_bytes}"
        )
    why = answer.run.explanation if request.explain else ""
    return Result(
        request.id, request.model, request.version, outputs, places, answer.parameters, None, why
    )


def _arrange(
    signature: Signature, outputs: Sequence[TensorData], wanted: Sequence[Wanted]
) -> tuple[tuple[TensorData, ...], dict[str, RegionRange]]:
    """The outputs in the order in which they were asked for."""
    by_name = {output.name: output for output in outputs}
    places: dict[str, RegionRange] = {}
    arranged: list[TensorData] = []
    for want in wanted:
        tensor = by_name.get(want.name)
        if tensor is None:
            raise Internal(f"model '{signature.model.name}' gave no output '{want.name}'")
        if want.classes:
            tensor = classify(tensor, want.classes, signature)
        if want.target is not None and want.place is not None:
            want.target.write(tensor.data)
            places[want.name] = want.place._replace(byte_size=len(tensor.data))
            tensor = tensor._replace(data=b"")
        arranged.append(tensor)
    return tuple(arranged), places
