"""Between NumPy arrays and PyTorch tensors: types, and views of the same memory."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

from sits_core.datatypes import NUMPY_TYPES, Array

TORCH_TYPES: Final = {
    "BOOL": torch.bool,
    "UINT8": torch.uint8,
    "UINT16": torch.uint16,
    "UINT32": torch.uint32,
    "UINT64": torch.uint64,
    "INT8": torch.int8,
    "INT16": torch.int16,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "FP16": torch.float16,
    "FP32": torch.float32,
    "FP64": torch.float64,
    "BF16": torch.bfloat16,
}
"""Datatype of the Open Inference Protocol → PyTorch. There is none for BYTES."""
DATATYPES: Final = {dtype: datatype for datatype, dtype in TORCH_TYPES.items()}
_BY_NUMPY: Final = {NUMPY_TYPES[datatype]: dtype for datatype, dtype in TORCH_TYPES.items()}


def torch_type(array: Array) -> torch.dtype:
    """Raises `TypeError` when PyTorch has no such tensors."""
    dtype = array.dtype if array.dtype.byteorder != ">" else array.dtype.newbyteorder("<")
    try:
        return _BY_NUMPY[dtype]
    except KeyError:
        raise TypeError(f"PyTorch has no tensors of {array.dtype}") from None


def as_array(tensor: torch.Tensor) -> Array:
    """A host tensor's memory as an array. NumPy itself has no bfloat16."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.dtype == torch.bfloat16:
        return plain.view(torch.uint16).numpy().view(NUMPY_TYPES["BF16"])
    array: Array = plain.numpy()
    return array


def copied(array: Array) -> torch.Tensor:
    """A tensor of its own: models may write into their inputs, payload slots are others'."""
    tensor = torch.empty(array.shape, dtype=torch_type(array))
    np.copyto(as_array(tensor), array)
    return tensor


def nbytes(shape: Sequence[int], dtype: torch.dtype) -> int:
    size = dtype.itemsize
    for dim in shape:
        size *= dim
    return size
