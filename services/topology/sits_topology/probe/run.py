"""One probe of this host: what there is decides what is measured, and what is said instead."""

import importlib.util
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from sits_topology.model import Device, DeviceKind, Topology
from sits_topology.probe import plan
from sits_topology.probe.affine import Cpus
from sits_topology.probe.memory import MemoryCopier
from sits_topology.probe.plan import How, Path
from sits_topology.probe.report import Report
from sits_topology.probe.timing import AllReduce, Copied, Copier, Gang, measure

NO_TORCH: Final = (
    "GPUs are here, but PyTorch with CUDA is not: install torch beside sits-topology "
    "to measure them"
)
ONE_NODE: Final = "one NUMA node: there are no two host memories to copy between"
NO_GPU: Final = "no GPU: only host memory was measured"

Step = Callable[[str], None]
"""Called with what comes next."""


class Gpus(Protocol):
    """The part that needs GPUs."""

    @property
    def names(self) -> Sequence[str]:
        """Of the GPUs that this process may use, in CUDA's order."""
        ...

    def copier(self, cpus: Cpus) -> Copier: ...

    def all_reduces(
        self, gangs: Sequence[Gang], sizes: Sequence[int], done: Callable[[], object]
    ) -> list[AllReduce]:
        """Raises `RuntimeError` when collectives cannot be had."""
        ...


class Sizes(NamedTuple):
    copies: Sequence[int]
    all_reduces: Sequence[int]
    repetitions: int


FULL: Final = Sizes(plan.SIZES, (4 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20), 15)
QUICK: Final = Sizes(plan.QUICK_SIZES, (4 << 10, 4 << 20), 5)


@dataclass(frozen=True, slots=True)
class Probe:
    """`gpus` None = there are none that can be measured, `notes` say why."""

    topology: Topology
    gpus: Gpus | None
    sizes: Sizes
    notes: Sequence[str] = ()

    @property
    def paths(self) -> list[Path]:
        names = self.gpus.names if self.gpus else ()
        return list(plan.paths(names, list(self._cpus)))

    @property
    def gangs(self) -> list[Gang]:
        return plan.gangs(len(self.gpus.names)) if self.gpus else []

    @property
    def steps(self) -> int:
        return len(self.paths) + len(self.gangs)

    def run(self, step: Step) -> Report:
        notes = [*self.notes, *self._absent()]
        copies = [copied for path in self.paths for copied in self._copied(path, step)]
        all_reduces = self._all_reduces(step, notes)
        return Report(
            at_unix_s=time.time(),
            topology=self.topology,
            gpus=list(self.gpus.names) if self.gpus else [],
            copies=copies,
            all_reduces=all_reduces,
            software=software(),
            notes=notes,
        )

    @property
    def _cpus(self) -> Cpus:
        return {cpu.id: cpu.cpus for cpu in self.topology.of_kind(DeviceKind.CPU)}

    def _absent(self) -> Iterator[str]:
        if self.gpus is None and not self.notes:
            yield NO_GPU
        if len(self._cpus) < 2:
            yield ONE_NODE

    def _copied(self, path: Path, step: Step) -> Iterator[Copied]:
        step(f"{path.source} → {path.target} {path.how.value}")
        opened = self._copier(path).open(path, max(self.sizes.copies))
        try:
            for size in self.sizes.copies:
                count = 1 if size == min(self.sizes.copies) else 4
                timing = measure(opened.copies(size), count, self.sizes.repetitions)
                yield Copied(path, size, timing)
        finally:
            opened.close()

    def _copier(self, path: Path) -> Copier:
        if path.how is How.MEMORY or self.gpus is None:
            return MemoryCopier(self._cpus)
        return self.gpus.copier(self._cpus)

    def _all_reduces(self, step: Step, notes: list[str]) -> list[AllReduce]:
        if self.gpus is None or not self.gangs:
            return []
        step("all-reduce")
        try:
            return self.gpus.all_reduces(
                self.gangs, self.sizes.all_reduces, lambda: step("all-reduce")
            )
        except RuntimeError as error:
            notes.append(f"no all-reduce was measured: {error}")
            return []


def found_gpus(devices: Sequence[Device]) -> tuple[Gpus | None, list[str]]:
    """What PyTorch can reach of the GPUs that NVML sees, and why it is not all of them."""
    gpus = [device for device in devices if device.kind is DeviceKind.GPU]
    notes = []
    if any(device.kind is DeviceKind.MIG for device in devices):
        notes.append("MIG slices are not measured: they reach each other through the host only")
    if not gpus:
        return None, notes
    if importlib.util.find_spec("torch") is None:
        return None, [*notes, NO_TORCH]
    # A service without GPUs has no torch, so that nothing else may import this.
    from sits_topology.probe.gpus import CudaGpus

    found = CudaGpus(gpus)
    if not found.names:
        return None, [*notes, NO_TORCH]
    hidden = [gpu.id for gpu in gpus if gpu.id not in found.names]
    if hidden:
        notes.append(f"not visible to CUDA, so not measured: {', '.join(hidden)}")
    return found, notes


def software() -> dict[str, str]:
    if importlib.util.find_spec("torch") is None:
        return {}
    import torch

    versions = {"torch": str(torch.__version__), "cuda": torch.version.cuda or ""}
    if torch.cuda.is_available():
        nccl = torch.cuda.nccl.version()
        versions["nccl"] = ".".join(map(str, nccl))
    return versions
