"""Requests whose messages begin as one before did, up to the data: they are not parsed again.

Most clients ask for the same model with the same shape over and over, without an id: all that
differs is the data, and it stands last in the message.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from sits_preprocess.oip.draft import Draft
from sits_preprocess.oip.encoding import lead
from sits_preprocess.oip.outputs import Wanted
from sits_preprocess.oip.signature import Signature
from sits_preprocess.request import NO_PARAMETERS, Parameters, TensorData
from sits_preprocess.shared_memory import Regions
from sits_protos.oip.grpc_service_pb2 import ModelInferRequest

MAX_KNOWN: Final = 1024
"""Beginnings remembered; then all are forgotten, and those in use come back."""
MAX_BYTES: Final = 512
"""Of a beginning; longer ones are seldom the same twice."""

_RAW: Final = ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER


class _Known(NamedTuple):
    """What a beginning asks for, and its only input as the signature found it right."""

    model: str
    version: str
    signature: Signature
    name: str
    datatype: str
    shape: tuple[int, ...]


class KnownDraft:
    """A request that differs from an earlier one in its data only."""

    __slots__ = ("_data", "_known", "_whole", "id", "model", "version")

    def __init__(self, known: _Known, data: bytes, whole: Callable[[], Draft]) -> None:
        """`whole` reads the message: when the model was replaced since, all is checked anew."""
        self._known, self._data, self._whole = known, data, whole
        self.id, self.model, self.version = "", known.model, known.version

    def parameters(self) -> Parameters:
        return NO_PARAMETERS

    def inputs(self, signature: Signature, regions: Regions) -> tuple[TensorData, ...]:
        _, _, checked, name, datatype, shape = self._known
        if checked is not signature:
            return self._whole().inputs(signature, regions)
        return (TensorData(name, datatype, shape, self._data),)

    def outputs(self, signature: Signature, regions: Regions) -> Sequence[Wanted]:
        return ()


class Beginnings:
    """Safe from any thread: the worst that a race costs is to read a message once more.

    A beginning ends with the length of the data, and the message with the data. So a message
    of the same length that begins the same says the same of everything but the data.
    """

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}
        self._known: dict[bytes, _Known] = {}

    def find(self, message: bytes, whole: Callable[[], Draft]) -> KnownDraft | None:
        end = self._ends.get(len(message))
        if end is None or (known := self._known.get(message[:end])) is None:
            return None
        return KnownDraft(known, message[end:], whole)

    def learn(
        self, message: bytes, request: ModelInferRequest, signature: Signature, tensor: TensorData
    ) -> None:
        """`request`, which `message` holds, was found right; `tensor` is its only input."""
        if request.id or request.parameters or request.outputs:
            return
        end = len(message) - len(tensor.data)
        if end > MAX_BYTES or not _data_is_last(message, end):
            return
        if len(self._known) >= MAX_KNOWN:
            self._ends, self._known = {}, {}
        self._known[message[:end]] = _Known(
            request.model_name, request.model_version, signature,
            tensor.name, tensor.datatype, tensor.shape,
        )  # fmt: skip
        self._ends[len(message)] = end

    def __repr__(self) -> str:
        return f"<Beginnings of {len(self._known)} requests>"


def _data_is_last(message: bytes, end: int) -> bool:
    """Whether it is a field of its own behind all others, as every known client writes it."""
    head = lead(_RAW, len(message) - end)
    if not message.endswith(head, 0, end):
        return False
    try:
        before = ModelInferRequest.FromString(message[: end - len(head)])
    except DecodeError:
        return False  # it ends within another field
    return not before.raw_input_contents
