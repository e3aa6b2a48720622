"""What an error of PyTorch means: this run failed, memory ran out, or the device is lost."""

from typing import Final

import torch

from sits_executor.backends.streamed import DeviceLost, OutOfMemory

_STICKY: Final = (
    "illegal memory access",
    "device-side assert",
    "unspecified launch failure",
    "illegal instruction",
    "illegal address",
    "misaligned address",
    "invalid address space",
    "invalid program counter",
    "hardware stack error",
    "uncorrectable ecc error",
    "uncorrectable nvlink error",
    "launch timed out",
    "context is destroyed",
    "cudaerrorunknown",
    "unknown error",
    "device lost",
    "fell off the bus",
)
"""After these every further call of the process fails (CUDA runtime API, "sticky" errors)."""


def translated(error: Exception) -> Exception:
    """`DeviceLost` or `OutOfMemory` where it is that, else the error as it is."""
    if isinstance(error, torch.OutOfMemoryError):
        return OutOfMemory("the device has no memory left for this run")
    text = str(error).lower()
    if isinstance(error, RuntimeError) and any(sign in text for sign in _STICKY):
        return DeviceLost(str(error).strip().partition("\n")[0])
    return error
