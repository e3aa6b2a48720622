"""What launching a kernel costs the CPU: in a replayed graph, and eagerly (figure 1)."""

from collections.abc import Callable
from typing import Final

import torch

from gpu.rig import Setup, backend, median_us, mlp
from sits_sim.figures import Figure, at_most, plain

MOST_US: Final = 0.5
ROWS, LAYERS = 8, 20
KERNELS: Final = 2 * LAYERS
"""A linear map and a rectifier a layer, without copies."""


def measure(setup: Setup) -> list[Figure]:
    device, net = setup.open(), mlp(setup, LAYERS, most=ROWS)
    opened = backend(net, device, buckets=(ROWS,))
    try:
        slot = opened._slots.slots[0]
        (captured,) = slot.graphs.values()
        x = captured.inputs[0]
        with torch.inference_mode():
            eager = _launch_us(setup, lambda: net.module(x))
        replay = _launch_us(setup, captured.graph.replay)
    finally:
        opened.close()
    kernels = counted(setup, lambda: net.module(x))
    return [
        at_most("launch: CPU time of a kernel in a replayed graph", replay / kernels, "us",
                MOST_US, eager / kernels),
        plain("launch: CPU time of a kernel, eager", eager / kernels, "us"),
        plain(f"launch: whole graph of {kernels} kernels", replay, "us"),
        plain(f"launch: the same {kernels} kernels, eager", eager, "us"),
    ]  # fmt: skip


def counted(setup: Setup, run: Callable[[], object]) -> int:
    """Kernels of one call, as the profiler sees them; by construction where it sees none."""
    if not setup.on_gpu:
        return KERNELS
    from torch.profiler import ProfilerActivity, profile

    with torch.inference_mode(), profile(activities=[ProfilerActivity.CUDA]) as seen:
        run()
        torch.cuda.synchronize()
    return sum(event.count for event in seen.key_averages() if event.device_type.name == "CUDA")


def _launch_us(setup: Setup, run: Callable[[], object]) -> float:
    """Until the call returns; the device catches up before the next one."""
    taken = []
    for _ in range(setup.times(200)):
        taken.append(median_us(run, 1, 0))
        if setup.on_gpu:
            torch.cuda.synchronize()
    return sorted(taken)[len(taken) // 2]
