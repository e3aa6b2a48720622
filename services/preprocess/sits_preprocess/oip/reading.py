"""`inference.ModelInferRequest` to a draft: where each input's data is, and in which form."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from google.protobuf.message import DecodeError

from sits_core.errors import InvalidArgument
from sits_preprocess.oip.contents import pack
from sits_preprocess.oip.draft import Draft
from sits_preprocess.oip.known import Beginnings
from sits_preprocess.oip.limits import (
    MAX_ID_CHARS,
    MAX_PARAMETERS,
    MAX_TENSORS,
    check_count,
    check_name,
)
from sits_preprocess.oip.outputs import RegionRange, Wanted, read_outputs, region_range
from sits_preprocess.oip.parameters import TENANT, oip_values
from sits_preprocess.oip.signature import InputSpec, Signature
from sits_preprocess.oip.tensors import (
    check_data,
    check_declared,
    check_rank,
    check_size,
    in_model_order,
)
from sits_preprocess.request import NO_PARAMETERS, Parameters, TensorData
from sits_preprocess.shared_memory import Regions
from sits_protos.oip.grpc_service_pb2 import ModelInferRequest

Input = ModelInferRequest.InferInputTensor
Learn = Callable[[ModelInferRequest, Signature, TensorData], None]

_TENANT: Final = TENANT.encode()
_NAME: Final = bytes([ModelInferRequest.MODEL_NAME_FIELD_NUMBER << 3 | 2])
_VERSION: Final = bytes([ModelInferRequest.MODEL_VERSION_FIELD_NUMBER << 3 | 2])
_PARAMETERS_WITHIN: Final = 4096
"""Clients write parameters before tensors; who hides a tenant further back is judged, while
there is overload, as if it were not there."""


def parse(message: bytes) -> ModelInferRequest:
    try:
        return ModelInferRequest.FromString(message)
    except DecodeError:
        raise InvalidArgument(
            f"expected an inference.ModelInferRequest, got {len(message)} bytes that are none"
        ) from None


class OipDraft:
    """A parsed request."""

    __slots__ = ("_learn", "_raw", "_request", "_tensors", "id", "model", "version")

    def __init__(self, request: ModelInferRequest, learn: Learn | None = None) -> None:
        """Raises `InvalidArgument` when the request declares more than the limits allow. `learn`
        hears of it when it is of the common kind, and of one input."""
        tensors, raw = request.inputs, request.raw_input_contents
        _check_counts(len(tensors), len(raw), len(request.outputs))
        # As lists: a message's own containers are several times slower to go through.
        self._request, self._tensors, self._raw = request, tensors[:], raw[:]
        self._learn = learn
        self.id, self.model = request.id, request.model_name
        self.version = request.model_version
        if self.id:
            check_name("request id", self.id, MAX_ID_CHARS)

    def parameters(self) -> Parameters:
        given = self._request.parameters
        return oip_values(given) if given else NO_PARAMETERS

    def inputs(self, signature: Signature, regions: Regions) -> tuple[TensorData, ...]:
        plain = _plain_inputs(self._tensors, self._raw, signature)
        if plain is not None:
            if self._learn is not None and len(plain) == 1:
                self._learn(self._request, signature, plain[0])
            return plain
        return _any_inputs(self._tensors, self._raw, signature, regions)

    def outputs(self, signature: Signature, regions: Regions) -> Sequence[Wanted]:
        requested = self._request.outputs
        return read_outputs(requested, signature, regions) if requested else ()


def beginning(message: bytes) -> bytes | None:
    """Its first two fields where these are name and version, and nothing that follows changes
    whom to account it to. Messages that begin the same name the same."""
    if message[:1] != _NAME or message.find(_TENANT, 0, _PARAMETERS_WITHIN) >= 0:
        return None
    end = _end(message, 0)
    if message[end : end + 1] == _VERSION:
        end = _end(message, end)
    return message[:end] if 0 < end <= len(message) else None


def _end(message: bytes, start: int) -> int:
    """Of the text field there; beyond the message where its length is not one byte."""
    length = message[start + 1] if start + 1 < len(message) else 0x80
    return start + 2 + length if length < 0x80 else len(message) + 1


class OipMessage:
    """A `ModelInferRequest` as it came."""

    __slots__ = ("_beginnings", "_message")

    def __init__(self, message: bytes, beginnings: Beginnings | None = None) -> None:
        """What `beginnings` know is not parsed again."""
        self._message, self._beginnings = message, beginnings

    def names(self) -> tuple[str, str] | None:
        """From the message's first two fields; None when these are not name and version."""
        message = self._message
        if message.find(_TENANT, 0, _PARAMETERS_WITHIN) >= 0:
            return None
        name, position = _text(message, 0, ModelInferRequest.MODEL_NAME_FIELD_NUMBER)
        version, _ = _text(message, position, ModelInferRequest.MODEL_VERSION_FIELD_NUMBER)
        return (name, version) if name else None

    def read(self) -> Draft:
        """Raises `InvalidArgument` when it is no request, or declares more than limits allow."""
        beginnings = self._beginnings
        if beginnings is None:
            return self._whole()
        known = beginnings.find(self._message, self._whole)
        if known is not None:
            return known
        return OipDraft(parse(self._message), partial(beginnings.learn, self._message))

    def _whole(self) -> Draft:
        return OipDraft(parse(self._message))


def _text(message: bytes, position: int, field: int) -> tuple[str, int]:
    """A text field at `position`, and where it ends; nothing when another one stands there.
    Lengths of more than one byte are left to the parser."""
    if len(message) < position + 2 or message[position] != field << 3 | 2:
        return "", position
    start = position + 2
    end = start + message[position + 1]
    if end - start > 0x7F or end > len(message):
        return "", position
    return message[start:end].decode("utf-8", "replace"), end


def _check_counts(inputs: int, raw: int, outputs: int) -> None:
    if inputs > MAX_TENSORS or raw > MAX_TENSORS or outputs > MAX_TENSORS:
        check_count("inputs", inputs, MAX_TENSORS)
        check_count("raw_input_contents", raw, MAX_TENSORS)
        check_count("outputs", outputs, MAX_TENSORS)


def _plain_inputs(
    inputs: Sequence[Input], raw: Sequence[bytes], signature: Signature
) -> tuple[TensorData, ...] | None:
    """The common case in one pass: all inputs in the model's order, raw, none of them BYTES.

    None for everything else, right or wrong: `_any_inputs` tells which.
    """
    specs = signature.plain
    if not specs or len(inputs) != len(specs) or len(raw) != len(specs):
        return None
    tensors: list[TensorData] = []
    for tensor, data, spec in zip(inputs, raw, specs, strict=True):
        shape = tuple(tensor.shape[:])
        if tensor.name != spec.name or tensor.datatype != spec.datatype:
            return None
        if len(data) != spec.plain_bytes(shape) or tensor.parameters or tensor.HasField("contents"):
            return None
        tensors.append(TensorData(spec.name, spec.datatype, shape, data))
    return tuple(tensors)


def _any_inputs(
    inputs: Sequence[Input], raw: Sequence[bytes], signature: Signature, regions: Regions
) -> tuple[TensorData, ...]:
    entries = iter(raw) if raw else None
    tensors: list[TensorData] = []
    for tensor in inputs:
        check_rank(tensor.name, len(tensor.shape))
        shape = tuple(tensor.shape)
        spec = check_declared(signature, tensor.name, tensor.datatype, shape)
        data = _data(tensor, shape, entries, signature, spec, regions)
        checked = TensorData(spec.name, spec.datatype, shape, data)
        check_data(signature, spec, checked)
        tensors.append(checked)
    ordered = in_model_order(signature, tensors)
    if entries is not None and (surplus := sum(1 for _ in entries)):
        raise InvalidArgument(
            f"unexpected raw_input_contents for model '{signature.model.name}': expected "
            f"{len(raw) - surplus} entries, one for each input that is not in shared memory, "
            f"got {len(raw)}"
        )
    return ordered


def _data(
    tensor: Input,
    shape: tuple[int, ...],
    entries: Iterator[bytes] | None,
    signature: Signature,
    spec: InputSpec,
    regions: Regions,
) -> bytes | memoryview:
    """From shared memory, else the next raw entry, else the typed contents."""
    model, has_contents = signature.model.name, tensor.HasField("contents")
    if tensor.parameters:
        check_count(f"parameters of input '{spec.name}'", len(tensor.parameters), MAX_PARAMETERS)
        place = region_range(spec.name, tensor.parameters)
        if place is not None:
            if has_contents:
                raise InvalidArgument(
                    "contents field must not be specified when using shared memory for "
                    f"'{spec.name}' for model '{model}'"
                )
            return _borrowed(place, shape, signature, spec, regions)
    if entries is None:
        if has_contents:
            return pack(spec.name, model, spec.datatype, tensor.contents)
        raise _no_data(spec.name, model)
    if has_contents:
        raise InvalidArgument(
            "contents field must not be specified when using raw_input_contents for "
            f"'{spec.name}' for model '{model}'"
        )
    data = next(entries, None)
    if data is None:
        raise _no_data(spec.name, model)
    return data


def _borrowed(
    place: RegionRange,
    shape: tuple[int, ...],
    signature: Signature,
    spec: InputSpec,
    regions: Regions,
) -> memoryview:
    """A copy: what was checked must not change any more under our hands."""
    check_size(signature, spec, shape, place.byte_size)
    with regions.borrow(*place) as borrowed:
        return borrowed.view


def _no_data(name: str, model: str) -> InvalidArgument:
    return InvalidArgument(
        f"unable to find data for input tensor '{name}' for model '{model}' in request."
    )
