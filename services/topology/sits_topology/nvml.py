"""The source for machines with NVIDIA GPUs: NVML for the cards, Linux for the rest."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pynvml
import structlog

from sits_topology.fabric import BestSeen, NvLinks
from sits_topology.health import HealthMemory, Sign, judged, lost_card, lost_nvlinks
from sits_topology.host import Host, read_host, topology_of
from sits_topology.model import Device, DeviceKind, Topology, TopologyError
from sits_topology.nvml_api import Nvml
from sits_topology.nvml_devices import Gpu, read_card
from sits_topology.nvml_health import XidWatch
from sits_topology.nvml_links import gpu_links
from sits_topology.questions import GONE, MissingLog

log = structlog.get_logger()


class NvmlSource:
    """Asks everything anew at each read, so cards, slices and links may come and go.

    What stays between reads: NVML itself, the best that each card's NVLinks ever were, what
    happened to each card lately, and which missing facts were logged.
    """

    def __init__(
        self, sysfs: Path, api: Nvml = pynvml, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._sysfs, self._api, self._now_s = sysfs, api, now_s
        self._open = False
        self._best = BestSeen()
        self._missing = MissingLog()
        self._memory, self._xids = HealthMemory(), XidWatch(api)
        self._unreadable: set[int] = set()

    def read(self) -> Topology:
        """Raises `TopologyError` when there is no driver; the next read looks again."""
        try:
            if not self._open:
                self._api.nvmlInit()
                self._open = True
            return self._read()
        except pynvml.NVMLError as error:
            self._open = False
            self._xids.close()
            raise TopologyError(f"NVML does not answer: {error}") from error

    def _read(self) -> Topology:
        host = read_host(self._sysfs)
        gpus = self._gpus(host)
        expected = self._best.expected(
            {gpu.device.id: (gpu.device.name, gpu.nvlinks) for gpu in gpus}
        )
        links = list(gpu_links(self._api, gpus, expected, host.distances))
        for gpu in gpus:
            links += host.links_of(gpu.device, gpu.path, gpu.on_c2c)
        happened = self._signs(gpus)
        devices = [
            self._finished(gpu, expected[gpu.device.id], happened[gpu.device.pci_bus_id])
            for gpu in gpus
        ]
        return topology_of(host, devices, iter(links), ("nvml", "sysfs"))

    def _gpus(self, host: Host) -> list[Gpu]:
        found: list[Gpu] = []
        for index in range(self._api.nvmlDeviceGetCount()):
            try:
                found += read_card(self._api, index, host)
            except GONE:
                raise
            except pynvml.NVMLError as error:
                self._skip(index, error)
        return found

    def _skip(self, index: int, error: Exception) -> None:
        """A card that fell off the bus has no handle any more; the others go on."""
        if index not in self._unreadable:
            self._unreadable.add(index)
            log.warning("topology.card_unreadable", index=index, error=str(error))

    def _signs(self, gpus: Sequence[Gpu]) -> dict[str, list[Sign]]:
        """What happened to each card, by its place on the bus: slices share it."""
        cards = {gpu.device.pci_bus_id: gpu for gpu in gpus}
        for bus_id, card in cards.items():
            self._xids.watch(bus_id, card.handle)
        xids, now_s = self._xids.look(), self._now_s()
        return {
            bus_id: list(self._memory.signs(bus_id, card.condition, xids.get(bus_id, ()), now_s))
            for bus_id, card in cards.items()
        }

    def _finished(self, gpu: Gpu, expected: NvLinks, happened: Sequence[Sign]) -> Device:
        """With all that was not told about it, now that every question was asked."""
        causes = gpu.questions.causes
        self._missing.tell(gpu.device.id, causes)
        signs = [*lost_card(gpu.questions.lost), *happened]
        if gpu.device.kind is DeviceKind.GPU:
            signs += lost_nvlinks(gpu.nvlinks, expected)
        return judged(replace(gpu.device, missing=gpu.questions.missing), signs)
