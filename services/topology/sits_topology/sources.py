"""Where a topology comes from: one `read()` each, called every period."""

from pathlib import Path
from typing import Protocol

import structlog

from sits_topology.host import HostSource
from sits_topology.model import Topology, TopologyError
from sits_topology.nvml import NvmlSource

log = structlog.get_logger()

SYSFS = Path("/sys")


class Source(Protocol):
    def read(self) -> Topology:
        """The state of now. Raises `TopologyError` when there is none to be had."""
        ...


class AutoSource:
    """NVML where there is a driver, else Linux alone. A driver may appear later; once it
    has, its absence is a failure and no reason to forget the GPUs."""

    def __init__(self, nvml: Source, host: Source) -> None:
        self._nvml, self._host = nvml, host
        self._seen_gpus = False
        self._said = False

    def read(self) -> Topology:
        try:
            topology = self._nvml.read()
        except TopologyError as error:
            if self._seen_gpus:
                raise
            self._say(str(error))
            return self._host.read()
        self._seen_gpus = True
        return topology

    def _say(self, reason: str) -> None:
        if not self._said:
            self._said = True
            log.info("topology.without_gpus", reason=reason)


def choose_source(setting: str, sysfs: Path = SYSFS) -> Source:
    """The source that `SITS_TOPOLOGY_SOURCE` names."""
    match setting:
        case "auto":
            return AutoSource(NvmlSource(sysfs), HostSource(sysfs))
        case "nvml":
            return NvmlSource(sysfs)
        case "sysfs":
            return HostSource(sysfs)
        case path:
            raise TopologyError(path)
