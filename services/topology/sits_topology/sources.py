"""Where a topology comes from: one `read()` each, called every period."""

from pathlib import Path
from typing import Protocol

import structlog

from sits_core.settings import SettingsError
from sits_topology.host import HostSource
from sits_topology.model import Topology, TopologyError
from sits_topology.nccl_xml import read_nccl_xml
from sits_topology.nvml import NvmlSource
from sits_topology.topo_text import read_topo_text

log = structlog.get_logger()

SYSFS = Path("/sys")
MAX_FILE_BYTES = 4 << 20


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


class FileSource:
    """A machine to imitate. The file is read once, at start."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology

    def read(self) -> Topology:
        return self._topology


def choose_source(setting: str, sysfs: Path = SYSFS) -> Source:
    """The source that `SITS_TOPOLOGY_SOURCE` names; `SettingsError` when it cannot be one."""
    try:
        match setting:
            case "auto":
                return AutoSource(NvmlSource(sysfs), HostSource(sysfs))
            case "nvml":
                source = NvmlSource(sysfs)
                source.read()
                return source
            case "sysfs":
                return HostSource(sysfs)
            case path:
                return FileSource(read_file(Path(path)))
    except TopologyError as error:
        raise SettingsError(f"SITS_TOPOLOGY_SOURCE={setting}: {error}") from None


def read_file(path: Path) -> Topology:
    """`nvidia-smi topo -m` text or NCCL topology XML, told apart by the first character."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise TopologyError(
            f"expected auto, nvml, sysfs or a readable file: {error.strerror}"
        ) from None
    if len(data) > MAX_FILE_BYTES:
        raise TopologyError(f"larger than {MAX_FILE_BYTES} bytes, which no topology is")
    text = data.decode("utf-8", errors="replace")
    return read_nccl_xml(text) if text.lstrip().startswith("<") else read_topo_text(text)
