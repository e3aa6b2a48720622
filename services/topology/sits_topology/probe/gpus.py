"""The GPUs of this host through PyTorch."""

from collections.abc import Callable, Sequence

from sits_topology.model import Device
from sits_topology.probe.affine import Cpus
from sits_topology.probe.collectives import all_reduces
from sits_topology.probe.cuda import CudaCopier, ordinals
from sits_topology.probe.timing import AllReduce, Copier, Gang


class CudaGpus:
    def __init__(self, devices: Sequence[Device]) -> None:
        self._ordinals = ordinals(devices)

    @property
    def names(self) -> list[str]:
        return sorted(self._ordinals, key=self._ordinals.__getitem__)

    def copier(self, cpus: Cpus) -> Copier:
        return CudaCopier(self._ordinals, cpus)

    def all_reduces(
        self, gangs: Sequence[Gang], sizes: Sequence[int], done: Callable[[], object]
    ) -> list[AllReduce]:
        return all_reduces(gangs, sizes, done=done)
