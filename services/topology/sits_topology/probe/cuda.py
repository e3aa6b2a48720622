"""Copies to, from and between GPUs, timed on the GPU by CUDA events, through PyTorch."""

from collections.abc import Mapping, Sequence

import torch

from sits_topology.model import Device
from sits_topology.pcipaths import normal_bus_id
from sits_topology.probe.affine import Cpus, on_cpus
from sits_topology.probe.events import gpu_seconds
from sits_topology.probe.plan import How, Path
from sits_topology.probe.timing import Timed

Ordinals = Mapping[str, int]
"""CUDA's number of each GPU by its name."""


def ordinals(gpus: Sequence[Device]) -> dict[str, int]:
    """The GPUs that this process may use, in CUDA's order: by UUID, else by PCI address."""
    found: dict[str, int] = {}
    for ordinal in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(ordinal)
        names = {f"GPU-{properties.uuid}", f"pci:{_bus_id(properties)}"}
        for gpu in gpus:
            if gpu.id in names or f"pci:{gpu.pci_bus_id}" in names:
                found[gpu.id] = ordinal
    return found


def _bus_id(properties: object) -> str:
    """Empty where this PyTorch does not tell."""
    fields = ("pci_domain_id", "pci_bus_id", "pci_device_id")
    domain, bus, device = (getattr(properties, field, -1) for field in fields)
    return normal_bus_id(f"{domain:04x}:{bus:02x}:{device:02x}.0") if device >= 0 else ""


class CudaCopier:
    """Peer copies go the way that the driver has: NVLink, PCIe, or through the host."""

    def __init__(self, gpus: Ordinals, cpus: Cpus) -> None:
        self._gpus, self._cpus = gpus, cpus

    def open(self, path: Path, most_bytes: int) -> "OpenedCopy":
        source = self._memory(path.source, most_bytes, path.how)
        target = self._memory(path.target, most_bytes, path.how)
        gpu = self._gpus.get(path.source, self._gpus.get(path.target, 0))
        return OpenedCopy(source, target, gpu)

    def _memory(self, device: str, size_bytes: int, how: How) -> torch.Tensor:
        if device in self._gpus:
            return torch.ones(size_bytes, dtype=torch.uint8, device=f"cuda:{self._gpus[device]}")
        with on_cpus(self._cpus[device]):
            memory = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=how is How.PINNED)
            return memory.fill_(1)


class OpenedCopy:
    """Both ends of one path; copies run on the source GPU's stream, where PyTorch puts them."""

    def __init__(self, source: torch.Tensor, target: torch.Tensor, gpu: int) -> None:
        self._source, self._target, self._gpu = source, target, gpu

    def copies(self, size_bytes: int) -> Timed:
        source, target = self._source[:size_bytes], self._target[:size_bytes]

        def timed(count: int) -> float:
            with torch.cuda.device(self._gpu):
                return gpu_seconds(lambda: target.copy_(source, non_blocking=True), count)

        return timed

    def close(self) -> None:
        del self._source, self._target
        torch.cuda.empty_cache()
