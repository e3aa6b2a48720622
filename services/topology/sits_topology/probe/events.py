"""Time on the GPU, by CUDA events on the current stream."""

from collections.abc import Callable

import torch


def gpu_seconds(work: Callable[[], object], count: int) -> float:
    """That `count` times `work` take, all together; waits for the end."""
    start, end = _event(), _event()
    start.record()
    for _ in range(count):
        work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)
