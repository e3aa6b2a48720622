"""Executors whose device no topology service knows: placed as neither near nor far, with a word."""

from collections.abc import Iterable

import structlog

from sits_protos.v1.link_pb2 import Hello
from sits_protos.v1.topology_pb2 import TopologySnapshot

log = structlog.get_logger()


class UnknownDevices:
    """Warns once for each executor. Without a snapshot of its host nothing can be said."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def look(self, executors: Iterable[Hello], snapshots: Iterable[TopologySnapshot]) -> None:
        known = {s.host: {device.id for device in s.devices} for s in snapshots}
        unknown = {
            hello.id: hello
            for hello in executors
            if hello.device and hello.device not in known.get(hello.host, {hello.device})
        }
        for hello in unknown.values():
            if hello.id not in self._warned:
                log.warning(
                    "executor.unknown_device",
                    executor=hello.id,
                    device=hello.device,
                    known=sorted(known[hello.host]),
                )
        self._warned = set(unknown)

    def __repr__(self) -> str:
        return f"<UnknownDevices of {len(self._warned)} executors>"
