"""Responses straight into bytes, each tensor copied once.

A message object would copy every tensor twice, and build again what is the same in every
response of one model and shape: all but the id and the data.
"""

from collections.abc import Hashable
from functools import lru_cache
from typing import Final, NamedTuple

from sits_preprocess.oip.result import Result
from sits_preprocess.oip.writing import response_of
from sits_protos.oip.grpc_service_pb2 import ModelInferResponse

MAX_KNOWN: Final = 1024
"""Models and shapes remembered; then all are forgotten, and those in use come back."""

_ID: Final = ModelInferResponse.ID_FIELD_NUMBER
_RAW: Final = ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER


class _Around(NamedTuple):
    """What stands before and behind the id."""

    before: bytes
    behind: bytes


class ResponseEncoder:
    """Gives the bytes of `response_of`. Safe from any thread."""

    def __init__(self) -> None:
        self._known: dict[Hashable, _Around] = {}

    def __call__(self, result: Result) -> bytes:
        outputs = result.outputs
        if result.places or result.parameters or result.explanation:
            return response_of(result).SerializeToString()
        key = (result.model, result.version, *[output[:3] for output in outputs])
        around = self._known.get(key) or self._learn(key, result)
        parts: list[bytes | memoryview] = [around.before]
        if result.id:
            text = result.id.encode()
            parts += (lead(_ID, len(text)), text)
        parts.append(around.behind)
        for output in outputs:
            parts += (lead(_RAW, len(output.data)), output.data)
        return b"".join(parts)

    def _learn(self, key: Hashable, result: Result) -> _Around:
        whole = response_of(result._replace(id=""))
        del whole.raw_output_contents[:]
        before = ModelInferResponse(model_name=result.model, model_version=result.version)
        whole.model_name = whole.model_version = ""
        if len(self._known) >= MAX_KNOWN:
            self._known = {}
        around = _Around(before.SerializeToString(), whole.SerializeToString())
        self._known[key] = around
        return around

    def __repr__(self) -> str:
        return f"<ResponseEncoder knows {len(self._known)} of {MAX_KNOWN}>"


@lru_cache(maxsize=4096)
def lead(field: int, length: int) -> bytes:
    """What stands before the content of a field with a length."""
    lead = bytearray((field << 3 | 2,))
    while length > 0x7F:
        lead.append(length & 0x7F | 0x80)
        length >>= 7
    lead.append(length)
    return bytes(lead)
