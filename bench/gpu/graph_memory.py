"""How much of the memory that graphs need is the same memory (figure 4).

Reuse = of what the smaller graphs of a model would take on their own, the part that they take
from the pool of the largest one: 1 − (shared − largest) / (sum of all alone − largest).
"""

from typing import Any, Final

import torch

from gpu.rig import Net, Setup, backend, bert
from sits_executor.backends.pytorch.device import TorchDevice
from sits_sim.figures import Figure, at_least, plain

LEAST: Final = 0.93
BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128)


def measure(setup: Setup) -> list[Figure]:
    buckets = BUCKETS if setup.on_gpu else BUCKETS[:4]
    net, device = bert(setup, buckets[-1]), setup.open()
    alone = [_pool_bytes(setup, net, device, (bucket,)) for bucket in buckets]
    shared = _pool_bytes(setup, net, device, buckets)
    smaller = sum(alone) - max(alone)
    reuse = 1 - max(0, shared - max(alone)) / smaller if smaller else 1.0
    return [
        at_least(f"graph memory: reuse over {len(buckets)} buckets", reuse, "of 1", LEAST),
        plain("graph memory: all buckets in one pool", shared / 2**20, "MiB"),
        plain("graph memory: each bucket in a pool of its own, sum", sum(alone) / 2**20, "MiB"),
        plain("graph memory: the largest bucket alone", max(alone) / 2**20, "MiB"),
    ]


def _pool_bytes(setup: Setup, net: Net, device: TorchDevice, buckets: tuple[int, ...]) -> int:
    """Device memory of the pool of a backend with these graphs. Nothing is pooled on the CPU."""
    opened = backend(net, device, buckets=buckets)
    try:
        if not setup.on_gpu:
            return 0
        pool = opened._slots.slots[0].pool
        segments: list[dict[str, Any]] = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        return sum(s["total_size"] for s in segments if tuple(s["segment_pool_id"]) == pool)
    finally:
        opened.close()
        del opened
        if setup.on_gpu:
            torch.cuda.empty_cache()
