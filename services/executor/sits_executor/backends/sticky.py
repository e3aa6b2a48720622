"""Errors of CUDA after which every further call of the process fails."""

from typing import Final

_STICKY: Final = (
    "illegal memory access",
    "device-side assert",
    "unspecified launch failure",
    "illegal instruction",
    "illegal address",
    "misaligned address",
    "invalid address space",
    "operation not supported on global/shared address space",
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
"""As the CUDA runtime words them. Weakness: runtimes pass on texts, not numbers; one that is
worded anew is taken for a failed run until then."""


def is_sticky(error: Exception) -> bool:
    text = str(error).lower()
    return any(sign in text for sign in _STICKY)
