"""What an error of PyTorch means: this run failed, memory ran out, or the device is lost."""

import torch

from sits_executor.backends.sticky import is_sticky
from sits_executor.backends.streamed import DeviceLost, OutOfMemory


def translated(error: Exception) -> Exception:
    """`DeviceLost` or `OutOfMemory` where it is that, else the error as it is."""
    if isinstance(error, torch.OutOfMemoryError):
        return OutOfMemory("the device has no memory left for this run")
    if isinstance(error, RuntimeError) and is_sticky(error):
        return DeviceLost(str(error).strip().partition("\n")[0])
    return error
