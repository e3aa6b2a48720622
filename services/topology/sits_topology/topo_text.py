"""A topology from the text of `nvidia-smi topo -m`.

The text has no UUIDs and no PCI addresses: GPUs are named `gpu:<index>`, in NVML order.

Where matrix and affinity disagree:
- Every pair SYS, but nodes differ: the matrix ranks nothing, so pairs of one node count as
  NODE (NVIDIA/go-gpuallocator#17).
- NODE between GPUs of different nodes: counts as SYS. A cgroup or a hypervisor hid the sockets.
- Otherwise the matrix is right. NVLink says nothing of NUMA, nor NUMA of NVLink.
"""

from collections.abc import Iterable, Iterator
from itertools import combinations

from sits_scheduling.links import Knowledge, LinkKind
from sits_topology.bandwidth import PER_NVLINK_GBPS
from sits_topology.fabric import Pair, degraded_pairs
from sits_topology.health import Sign, judged
from sits_topology.hostlinks import cpu_links, device_links, pcie_link
from sits_topology.model import Device, DeviceKind, Health, Link, Topology, both_ways
from sits_topology.sysfs import cpu_id
from sits_topology.topo_affinity import Affinity, read_affinity
from sits_topology.topo_matrix import Matrix, is_gpu, read_matrix

NEVER_TOLD = ("uuid", "pci_bus_id", "memory", "utilization")


def read_topo_text(text: str) -> Topology:
    """Raises `TopologyError` with what is wrong with the text."""
    matrix = read_matrix(text)
    affinities = {gpu: read_affinity(matrix, matrix.rows[gpu]) for gpu in matrix.gpus}
    degraded = degraded_pairs(matrix.gpus, _nvlink_counts(matrix))
    devices = {name: _nic(matrix, name) for name in matrix.names}
    devices |= {gpu: _gpu(matrix, gpu, affinities[gpu], degraded) for gpu in matrix.gpus}
    cpus = _cpu_nodes(affinities.values())
    links = [*_links(matrix, devices, degraded), *cpu_links(cpus, {})]
    for name, device in devices.items():
        affinity = affinities.get(name, Affinity())
        links += device_links(device, cpus, {}, on_c2c=affinity.gpu_numa_node is not None)
    return Topology((*devices.values(), *cpus), tuple(both_ways(links)), ("topo-m",))


def _gpu(matrix: Matrix, name: str, affinity: Affinity, degraded: set[Pair]) -> Device:
    untold = [fact for fact, value in (("numa_node", affinity.numa_node),) if value is None]
    untold += [] if affinity.cpus else ["cpus"]
    device = Device(
        id=f"gpu:{int(name[3:])}",
        kind=DeviceKind.GPU,
        name=name,
        index=int(name[3:]),
        numa_node=affinity.numa_node,
        cpus=affinity.cpus,
        missing=(*NEVER_TOLD, *untold),
    )
    others = [frozenset((name, gpu)) for gpu in matrix.gpus if gpu != name]
    lost = bool(others) and all(pair in degraded for pair in others)
    return judged(device, [Sign(Health.DEGRADED, "fewer NVLinks than its peers")] if lost else [])


def _nic(matrix: Matrix, name: str) -> Device:
    real = matrix.nic_names.get(name, name)
    return Device(id=f"nic:{real}", kind=DeviceKind.NIC, name=real, missing=("numa_node",))


def _cpu_nodes(affinities: Iterable[Affinity]) -> list[Device]:
    """The nodes that GPUs sit next to, with the CPUs that their rows name."""
    cpus: dict[int, set[int]] = {}
    for affinity in affinities:
        if affinity.numa_node is not None:
            cpus.setdefault(affinity.numa_node, set()).update(affinity.cpus)
    return [
        Device(
            id=cpu_id(node),
            kind=DeviceKind.CPU,
            name=f"CPU NUMA node {node}",
            numa_node=node,
            cpus=tuple(sorted(cpus[node])),
            missing=("memory",) if cpus[node] else ("memory", "cpus"),
        )
        for node in sorted(cpus)
    ]


def _nvlink_counts(matrix: Matrix) -> dict[Pair, int]:
    cells = {frozenset(pair): matrix.cell(*pair) for pair in combinations(matrix.gpus, 2)}
    return {pair: int(c[2:]) for pair, c in cells.items() if c is not None and c.startswith("NV")}


def _links(matrix: Matrix, devices: dict[str, Device], degraded: set[Pair]) -> Iterator[Link]:
    unranked = _all_sys(matrix)
    for one, other in combinations(matrix.names, 2):
        cell = matrix.cell(one, other)
        if cell is None or not (is_gpu(one) or is_gpu(other)):
            continue
        lost = frozenset((one, other)) in degraded
        if cell.startswith("NV"):
            yield _nvlink(devices[one], devices[other], int(cell[2:]), lost)
        else:
            yield _pcie(matrix, (one, other), devices, cell, lost, unranked)


def _nvlink(one: Device, other: Device, count: int, lost: bool) -> Link:
    return Link(
        one.id,
        other.id,
        LinkKind.NVLINK,
        Knowledge.DEGRADED if lost else Knowledge.KNOWN,
        lanes=count,
        bandwidth_gbps=count * PER_NVLINK_GBPS,
    )


def _pcie(
    matrix: Matrix,
    pair: tuple[str, str],
    devices: dict[str, Device],
    cell: str,
    lost: bool,
    unranked: bool,
) -> Link:
    one, other = (devices[name] for name in pair)
    kind = LinkKind[cell]
    if not all(is_gpu(name) for name in pair):
        return pcie_link(one, other, kind, Knowledge.KNOWN, {})
    knowledge = Knowledge.ABSENT if matrix.shows_nvlink else Knowledge.UNKNOWN
    knowledge = Knowledge.DEGRADED if lost else knowledge
    return pcie_link(one, other, _settled(kind, one, other, unranked), knowledge, {})


def _settled(kind: LinkKind, one: Device, other: Device, unranked: bool) -> LinkKind:
    """The kind, where the affinity says otherwise; see the module for the rules."""
    if one.numa_node is None or other.numa_node is None:
        return kind
    same = one.numa_node == other.numa_node
    if kind is LinkKind.SYS and unranked and same:
        return LinkKind.NODE
    if kind is LinkKind.NODE and not same:
        return LinkKind.SYS
    return kind


def _all_sys(matrix: Matrix) -> bool:
    cells = {matrix.cell(one, other) for one, other in combinations(matrix.gpus, 2)}
    return cells == {"SYS"}
