"""A request as its client wrote it, whichever of our two protocols it came by."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from sits_preprocess.oip.outputs import Wanted
from sits_preprocess.oip.signature import Signature
from sits_preprocess.request import ParameterValue, TensorData
from sits_preprocess.shared_memory import Regions


class Draft(NamedTuple):
    """Nothing in here is checked but its size. The two callables read the rest, against
    the model's signature, and raise for what does not fit."""

    id: str
    model: str
    version: str
    parameters: Mapping[str, ParameterValue]
    inputs: Callable[[Signature, Regions], tuple[TensorData, ...]]
    outputs: Callable[[Signature, Regions], Sequence[Wanted]]
