"""The classification extension: the best classes of an output as "value:index[:label]"."""

from collections.abc import Sequence

import numpy as np

from sits_core.datatypes import BYTES, Array, decode, encode_bytes
from sits_core.errors import InvalidArgument
from sits_preprocess.oip.signature import Signature
from sits_preprocess.request import TensorData


def classify(tensor: TensorData, classes: int, signature: Signature) -> TensorData:
    """BYTES of shape [rows, k], or [k] without batching; k = `classes` or all there are."""
    if tensor.datatype == BYTES:
        raise InvalidArgument(
            f"class result not available for output '{tensor.name}' due to unsupported type 'BYTES'"
        )
    batching = signature.max_batch_size > 0
    rows = tensor.shape[0] if batching else 1
    scores = decode(tensor.data, tensor.datatype, tensor.shape).reshape(rows, -1)
    kept = min(classes, scores.shape[1])
    labels = signature.model.labels.get(tensor.name, ())
    texts = [text for row in scores for text in _best(row, kept, labels)]
    shape = (rows, kept) if batching else (kept,)
    return TensorData(tensor.name, BYTES, shape, encode_bytes(texts))


def _best(row: Array, kept: int, labels: Sequence[str]) -> list[str]:
    # Negated so that equal scores keep the order of their classes; as float64 because
    # unsigned and boolean types cannot be negated.
    order = np.argsort(-row.astype(np.float64), kind="stable")[:kept]
    exact = row.dtype.kind in "iub"
    return [_text(row[index], int(index), exact, labels) for index in order]


def _text(value: np.generic, index: int, exact: bool, labels: Sequence[str]) -> str:
    shown = str(int(value)) if exact else f"{float(value):f}"
    label = f":{labels[index]}" if index < len(labels) and labels[index] else ""
    return f"{shown}:{index}{label}"
