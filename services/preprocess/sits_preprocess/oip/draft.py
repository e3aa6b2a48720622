"""A request as its client wrote it, whichever of our two protocols it came by."""

from collections.abc import Sequence
from typing import Protocol

from sits_preprocess.oip.outputs import Wanted
from sits_preprocess.oip.signature import Signature
from sits_preprocess.request import Parameters, TensorData
from sits_preprocess.shared_memory import Regions


class Draft(Protocol):
    """Nothing in here is checked but its size. The methods read the rest, against the model's
    signature, and raise for what does not fit."""

    @property
    def id(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def version(self) -> str: ...

    def parameters(self) -> Parameters: ...

    def inputs(self, signature: Signature, regions: Regions) -> tuple[TensorData, ...]:
        """In the model's order."""
        ...

    def outputs(self, signature: Signature, regions: Regions) -> Sequence[Wanted]:
        """Borrows the shared memory it names: the caller releases every `target`."""
        ...


class Unread(Protocol):
    """A request whose message has not been read."""

    def names(self) -> tuple[str, str] | None:
        """Model and version, if they can be told without reading the rest, and nothing in the
        rest changes whom to account it to."""
        ...

    def read(self) -> Draft:
        """Raises `InvalidArgument` when it is no request, or declares more than limits allow."""
        ...
