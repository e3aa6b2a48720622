"""What a probe found, as the file that the topology service reads and people look into."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sits_topology.measured import FORMAT, MeasuredLink
from sits_topology.model import Device, Topology
from sits_topology.probe.plan import How
from sits_topology.probe.timing import AllReduce, Copied

FED = (How.PEER, How.PINNED, How.MEMORY)
"""What links are judged by. Pageable copies are shown, the mesh stages through pinned memory."""


@dataclass(frozen=True, slots=True)
class Report:
    """`gpus` in CUDA's order. `notes` say what could not be measured, and why."""

    at_unix_s: float
    topology: Topology
    gpus: Sequence[str]
    copies: Sequence[Copied]
    all_reduces: Sequence[AllReduce]
    software: dict[str, str]
    notes: Sequence[str]

    def links(self) -> list[MeasuredLink]:
        """Of each pair: bandwidth of its largest copy, latency of its smallest."""
        found: dict[tuple[str, str], list[Copied]] = {}
        for copied in self.copies:
            if copied.path.how in FED and copied.path.source != copied.path.target:
                found.setdefault((copied.path.source, copied.path.target), []).append(copied)
        return [self._link(copies) for copies in found.values()]

    def _link(self, copies: Sequence[Copied]) -> MeasuredLink:
        smallest = min(copies, key=lambda copied: copied.size_bytes)
        largest = max(copies, key=lambda copied: copied.size_bytes)
        path = largest.path
        known = self.topology.link(path.source, path.target)
        return MeasuredLink(
            source=path.source,
            target=path.target,
            kind=known.kind.name,
            lanes=known.lanes or 0,
            gbps=round(largest.gbps, 3),
            latency_us=round(smallest.timing.seconds * 1e6, 3),
        )

    def as_dict(self) -> dict[str, object]:
        return {
            "format": FORMAT,
            "at_unix_s": self.at_unix_s,
            "software": self.software,
            "devices": [_device(device) for device in self.topology.devices],
            "links": [asdict(link) for link in self.links()],
            "copies": [_copied(copied) for copied in self.copies],
            "all_reduces": [self._all_reduce(found) for found in self.all_reduces],
            "notes": list(self.notes),
        }

    def _all_reduce(self, found: AllReduce) -> dict[str, object]:
        return {
            "gang": [self.gpus[number] for number in found.gang],
            "bytes": found.size_bytes,
            "seconds": found.timing.seconds,
            "spread": round(found.timing.spread, 4),
            "bus_gbps": round(found.bus_gbps, 3),
        }


def _device(device: Device) -> dict[str, object]:
    return {"id": device.id, "kind": device.kind.name, "name": device.name}


def _copied(copied: Copied) -> dict[str, object]:
    return {
        "source": copied.path.source,
        "target": copied.path.target,
        "how": copied.path.how.value,
        "bytes": copied.size_bytes,
        "seconds": copied.timing.seconds,
        "spread": round(copied.timing.spread, 4),
        "gbps": round(copied.gbps, 3),
    }
