"""How two cards are connected, from their NVLinks, their PCI ancestor and peer access."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations

from sits_scheduling.links import Knowledge, LinkKind
from sits_topology.bandwidth import per_nvlink_gbps
from sits_topology.fabric import NvLinks, lanes
from sits_topology.hostlinks import Distances, pcie_link
from sits_topology.model import DeviceKind, Link
from sits_topology.nvml_api import P2P_NVLINK, P2P_OK, P2P_UNKNOWN, Nvml
from sits_topology.nvml_devices import Gpu
from sits_topology.pcipaths import ancestor

_ANCESTORS = {
    0: LinkKind.PIX,  # two chips of one board
    10: LinkKind.PIX,
    20: LinkKind.PXB,
    30: LinkKind.PHB,
    40: LinkKind.NODE,
    50: LinkKind.SYS,
}


def gpu_links(
    api: Nvml, gpus: Sequence[Gpu], expected: Mapping[str, NvLinks], distances: Distances
) -> Iterator[Link]:
    """Each pair once."""
    for one, other in combinations(gpus, 2):
        if DeviceKind.MIG in (one.device.kind, other.device.kind):
            yield _between_slices(api, one, other, distances)
        else:
            yield _between_cards(api, one, other, expected, distances)


def _between_cards(
    api: Nvml, one: Gpu, other: Gpu, expected: Mapping[str, NvLinks], distances: Distances
) -> Link:
    up = _lanes(one, one.nvlinks, other, other.nvlinks)
    due = _lanes(one, expected[one.device.id], other, expected[other.device.id])
    access = _peer_access(api, one, other)
    if not (one.nvlinks.seen and other.nvlinks.seen):
        if access == P2P_OK:
            return _nvlink(one, other, None, Knowledge.KNOWN)
        return _pcie(api, one, other, Knowledge.UNKNOWN, distances)
    if not up:
        lost = Knowledge.DEGRADED if due else Knowledge.ABSENT
        return _pcie(api, one, other, lost, distances)
    if access not in (None, P2P_OK, P2P_UNKNOWN):
        # Links are up but the driver refuses to use them: a fabric that is not running.
        return _pcie(api, one, other, Knowledge.DEGRADED, distances)
    return _nvlink(one, other, up, Knowledge.DEGRADED if up < due else Knowledge.KNOWN)


def _between_slices(api: Nvml, one: Gpu, other: Gpu, distances: Distances) -> Link:
    """Slices have neither NVLink nor peer access: what one writes, the host carries over."""
    same_card = one.handle is other.handle
    path = LinkKind.PHB if same_card else max(LinkKind.PHB, _path(api, one, other))
    return pcie_link(one.device, other.device, path, Knowledge.ABSENT, distances)


def _lanes(one: Gpu, ones: NvLinks, other: Gpu, others: NvLinks) -> int:
    return lanes(ones, one.device.pci_bus_id, others, other.device.pci_bus_id)


def _nvlink(one: Gpu, other: Gpu, count: int | None, knowledge: Knowledge) -> Link:
    each = min(per_nvlink_gbps(gpu.compute_capability) for gpu in (one, other))
    return Link(
        one.device.id,
        other.device.id,
        LinkKind.NVLINK,
        knowledge,
        lanes=count,
        bandwidth_gbps=None if count is None else count * each,
    )


def _pcie(api: Nvml, one: Gpu, other: Gpu, knowledge: Knowledge, distances: Distances) -> Link:
    path = _path(api, one, other)
    if path is LinkKind.UNSPECIFIED and knowledge is Knowledge.ABSENT:
        knowledge = Knowledge.UNKNOWN  # of the path
    return pcie_link(one.device, other.device, path, knowledge, distances)


def _path(api: Nvml, one: Gpu, other: Gpu) -> LinkKind:
    """NVML's word, else Linux'."""
    level = _ask(
        one,
        other,
        "topology_ancestor",
        lambda: api.nvmlDeviceGetTopologyCommonAncestor(one.handle, other.handle),
    )
    return _ANCESTORS.get(-1 if level is None else level) or ancestor(one.path, other.path)


def _peer_access(api: Nvml, one: Gpu, other: Gpu) -> int | None:
    return _ask(
        one,
        other,
        "p2p_nvlink",
        lambda: api.nvmlDeviceGetP2PStatus(one.handle, other.handle, P2P_NVLINK),
    )


def _ask(one: Gpu, other: Gpu, fact: str, question: Callable[[], int]) -> int | None:
    """What is not told about a pair is missing on both of it."""
    answer = one.questions.ask(fact, question)
    if answer is None:
        other.questions.note(fact, one.questions.causes[fact])
    return answer
