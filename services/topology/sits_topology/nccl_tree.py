"""NCCL topology XML as a tree of plain values: read, or refused.

Parsed with the standard library. NCCL's files have no DTD, so any DOCTYPE is refused before
what it declares is read: no entities, hence neither external files nor expansion bombs. That
one method needs no further package. Size and depth are bounded.

NCCL's own rules for missing values hold: an empty or unknown `link_speed` is 8 GT/s,
`link_width` 0 is 16. The link values of bridges are not used: virtual ones say 2.5 GT/s x1.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn
from xml.etree import ElementTree

from sits_topology.bandwidth import pcie_gbps
from sits_topology.cpulist import parse_mask
from sits_topology.model import MAX_DEVICES, TopologyError
from sits_topology.pcipaths import normal_bus_id

MAX_DEPTH = 32
GPU_CLASSES = ("0x0300", "0x0302")
NIC_CLASSES = ("0x0200", "0x0207", "0x0280")
SWITCH_CLASS = "0x0680"
_BRIDGE_CLASS = "0x0604"


@dataclass(frozen=True, slots=True)
class NvLinkNode:
    target: str
    """PCI address of the other end; empty when it is hidden."""
    count: int
    to_switch: bool


@dataclass(frozen=True, slots=True)
class PciNode:
    """A GPU or a NIC, with the bridges above it."""

    bus_id: str
    is_gpu: bool
    name: str
    bridges: tuple[str, ...]
    numa_node: int
    gbps: float | None
    compute_capability: tuple[int, int] | None = None
    nvlinks: tuple[NvLinkNode, ...] | None = None
    """None when the file has no `gpu` tag for it: NVLink is then found at run time."""


@dataclass(frozen=True, slots=True)
class Tree:
    cpus: dict[int, tuple[int, ...]]
    """NUMA node → its CPUs."""
    devices: tuple[PciNode, ...]


class _NoDtd(ElementTree.TreeBuilder):
    def doctype(self, name: str, pubid: str | None, system: str | None) -> NoReturn:
        raise TopologyError("the XML has a DOCTYPE, which NCCL files never have")


def read_tree(text: str) -> Tree:
    root = _root(text)
    cpus: dict[int, tuple[int, ...]] = {}
    devices: list[PciNode] = []
    for cpu in root.findall("cpu"):
        node = _number(cpu, "numaid")
        cpus[node] = parse_mask(cpu.get("affinity", ""))
        devices += _devices(cpu, node, ())
    if not cpus:
        raise TopologyError("the <system> has no <cpu>: nothing to place devices by")
    if len(devices) > MAX_DEVICES:
        raise TopologyError(f"{len(devices)} devices: no host has more than {MAX_DEVICES}")
    return Tree(cpus, tuple(devices))


def _root(text: str) -> ElementTree.Element:
    parser = ElementTree.XMLParser(target=_NoDtd())  # noqa: S314 - DTDs are refused
    try:
        root = ElementTree.fromstring(text.strip(), parser)  # noqa: S314 - as above
    except ElementTree.ParseError as error:
        raise TopologyError(f"not well-formed XML: {error}") from None
    if root.tag == "graphs":
        raise TopologyError("a search result (NCCL_GRAPH_FILE, root <graphs>), not a topology")
    if root.tag != "system":
        raise TopologyError(f"expected the root <system> of an NCCL topology, got <{root.tag}>")
    return root


def _devices(parent: ElementTree.Element, node: int, bridges: tuple[str, ...]) -> Iterator[PciNode]:
    if len(bridges) > MAX_DEPTH:
        raise TopologyError(f"more than {MAX_DEPTH} bridges above a device")
    for pci in parent.findall("pci"):
        bus_id = _bus_id(pci)
        pci_class = pci.get("class", "")
        gpu = pci.find("gpu")
        if gpu is not None or pci_class.startswith(GPU_CLASSES):
            yield _gpu(pci, gpu, bus_id, node, bridges)
        elif pci.find("nic") is not None or pci_class.startswith(NIC_CLASSES):
            yield _nic(pci, bus_id, node, bridges)
        elif pci_class.startswith(_BRIDGE_CLASS) or pci.find("pci") is not None:
            yield from _devices(pci, node, (*bridges, bus_id))
        elif not pci_class:
            raise TopologyError(
                f"pci {bus_id} has no class, so GPUs and NICs cannot be told apart; NCCL looks "
                "it up on the machine itself: use a dump (NCCL_TOPO_DUMP_FILE) from there"
            )
    yield from _loose_nics(parent, node, bridges)


def _gpu(
    pci: ElementTree.Element,
    gpu: ElementTree.Element | None,
    bus_id: str,
    node: int,
    bridges: tuple[str, ...],
) -> PciNode:
    return PciNode(
        bus_id,
        True,
        f"GPU {bus_id}",
        bridges,
        node,
        pcie_gbps(pci.get("link_speed", ""), _number(pci, "link_width", 0)),
        None if gpu is None else _capability(gpu),
        None if gpu is None else tuple(_nvlinks(gpu)),
    )


def _nic(pci: ElementTree.Element, bus_id: str, node: int, bridges: tuple[str, ...]) -> PciNode:
    names = [net.get("name", "") for net in pci.iter("net")]
    speed = pcie_gbps(pci.get("link_speed", ""), _number(pci, "link_width", 0))
    return PciNode(bus_id, False, names[0] if names else bus_id, bridges, node, speed)


def _loose_nics(
    parent: ElementTree.Element, node: int, bridges: tuple[str, ...]
) -> Iterator[PciNode]:
    """`nic` tags that hang on no PCI device: virtual ones and those that NCCL merged."""
    if parent.tag == "cpu":
        for net in parent.findall("nic/net"):
            yield PciNode("", False, net.get("name", ""), bridges, node, None)


def _nvlinks(gpu: ElementTree.Element) -> Iterator[NvLinkNode]:
    for link in gpu.findall("nvlink"):
        target = link.get("target", "")
        hidden = target.lower().startswith("fffffff")
        to_switch = hidden or link.get("tclass", "").startswith(SWITCH_CLASS)
        yield NvLinkNode("" if hidden else normal_bus_id(target), _number(link, "count"), to_switch)


def _capability(gpu: ElementTree.Element) -> tuple[int, int] | None:
    sm = _number(gpu, "sm", 0)
    return divmod(sm, 10) if sm else None


def _bus_id(pci: ElementTree.Element) -> str:
    text = pci.get("busid", "")
    bus_id = normal_bus_id(text)
    if not bus_id:
        raise TopologyError(f"expected a PCI address such as 0000:3b:00.0, got {text[:40]!r}")
    return bus_id


def _number(element: ElementTree.Element, name: str, default: int | None = None) -> int:
    text = element.get(name, "")
    if re.fullmatch(r"\d{1,6}", text):
        return int(text)
    if default is not None:
        return default
    raise TopologyError(f"<{element.tag}>: expected a number in {name}, got {text[:40]!r}")
