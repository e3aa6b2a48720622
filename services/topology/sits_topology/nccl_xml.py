"""A topology from NCCL topology XML: input files (`NCCL_TOPO_FILE`) and dumps.

GPUs are named `pci:<address>`. An input file says nothing of NVLink, which NCCL finds at run
time: NVLink between its GPUs is UNKNOWN, never absent. So it is where a link's target is the
GPU's own address (Azure NCv4). Where a dump lists a GPU's links, their lack is a fact.
"""

from collections.abc import Iterator
from itertools import combinations

from sits_scheduling.links import Knowledge, LinkKind
from sits_topology.bandwidth import per_nvlink_gbps
from sits_topology.fabric import NvLinks, lanes
from sits_topology.hostlinks import cpu_links, device_links, pcie_link
from sits_topology.model import Device, DeviceKind, Link, Topology, both_ways
from sits_topology.nccl_tree import PciNode, Tree, read_tree
from sits_topology.sysfs import cpu_id


def read_nccl_xml(text: str) -> Topology:
    """Raises `TopologyError` with what is wrong with the file."""
    tree = read_tree(text)
    gpus = [node for node in tree.devices if node.is_gpu]
    known = {node.bus_id for node in gpus}
    index = {node: place for place, node in enumerate(gpus)}
    devices = {node: _device(node, index.get(node), known) for node in tree.devices}
    cpus = _cpu_nodes(tree)
    links = [*_pairs(devices), *cpu_links(cpus, {})]
    for device in devices.values():
        links += device_links(device, cpus, {})
    return Topology((*devices.values(), *cpus), tuple(both_ways(links)), ("nccl-xml",))


def _device(node: PciNode, index: int | None, known: set[str]) -> Device:
    outside = [link.target for link in node.nvlinks or () if _leaves(link.target, known)]
    return Device(
        id=f"pci:{node.bus_id}" if node.is_gpu else f"nic:{node.name}",
        kind=DeviceKind.GPU if node.is_gpu else DeviceKind.NIC,
        name=node.name,
        pci_bus_id=node.bus_id,
        index=index,
        numa_node=node.numa_node,
        pcie_gbps=node.gbps,
        missing=_missing(node, outside),
    )


def _missing(node: PciNode, outside: list[str]) -> tuple[str, ...]:
    if not node.is_gpu:
        return ()
    nvlink = ["nvlink"] if _nvlinks(node) is None else []
    peers = [f"nvlink peer {target}" for target in outside]
    return ("uuid", "memory", "utilization", *nvlink, *peers)


def _leaves(target: str, known: set[str]) -> bool:
    return bool(target) and target not in known


def _cpu_nodes(tree: Tree) -> list[Device]:
    return [
        Device(
            id=cpu_id(node),
            kind=DeviceKind.CPU,
            name=f"CPU NUMA node {node}",
            numa_node=node,
            cpus=cpus,
            missing=("memory",) if cpus else ("memory", "cpus"),
        )
        for node, cpus in sorted(tree.cpus.items())
    ]


def _pairs(devices: dict[PciNode, Device]) -> Iterator[Link]:
    for one, other in combinations(devices, 2):
        if one.is_gpu and other.is_gpu:
            yield _gpu_pair(one, other, devices)
        elif one.is_gpu or other.is_gpu:
            yield pcie_link(devices[one], devices[other], _path(one, other), Knowledge.KNOWN, {})


def _gpu_pair(one: PciNode, other: PciNode, devices: dict[PciNode, Device]) -> Link:
    ones, others = _nvlinks(one), _nvlinks(other)
    if ones is None or others is None:
        return pcie_link(devices[one], devices[other], _path(one, other), Knowledge.UNKNOWN, {})
    count = lanes(ones, one.bus_id, others, other.bus_id)
    if not count:
        return pcie_link(devices[one], devices[other], _path(one, other), Knowledge.ABSENT, {})
    each = min(per_nvlink_gbps(node.compute_capability) for node in (one, other))
    return Link(
        devices[one].id,
        devices[other].id,
        LinkKind.NVLINK,
        Knowledge.KNOWN,
        lanes=count,
        bandwidth_gbps=count * each,
    )


def _nvlinks(node: PciNode) -> NvLinks | None:
    """None when the file does not tell: no `gpu` tag, or links that end at themselves."""
    if node.nvlinks is None or any(link.target == node.bus_id for link in node.nvlinks):
        return None
    switched = sum(link.count for link in node.nvlinks if link.to_switch)
    peers: dict[str, int] = {}
    for link in node.nvlinks:
        if not link.to_switch:
            peers[link.target] = peers.get(link.target, 0) + link.count
    return NvLinks(switched, peers)


def _path(one: PciNode, other: PciNode) -> LinkKind:
    """The file has no difference between PHB and NODE, as NCCL has none: PHB."""
    if one.numa_node != other.numa_node:
        return LinkKind.SYS
    if not (one.bridges and other.bridges and one.bridges[0] == other.bridges[0]):
        return LinkKind.PHB
    return LinkKind.PIX if one.bridges == other.bridges else LinkKind.PXB
