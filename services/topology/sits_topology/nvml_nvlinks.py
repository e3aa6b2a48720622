"""Counting the NVLinks of one card by their state and by where they end."""

from pathlib import Path

from sits_topology.fabric import NvLinks
from sits_topology.nvml_api import MAX_NVLINKS, REMOTE_SWITCH, VGPU_GUEST, Handle, Nvml, PciInfo
from sits_topology.pcipaths import normal_bus_id
from sits_topology.questions import Questions
from sits_topology.sysfs import read_text

FACT = "nvlink"
SWITCH_CLASS = "0x0680"
"""PCI class of NVSwitch: a bridge of the kind 'other'."""


def count_nvlinks(api: Nvml, handle: Handle, sysfs: Path, questions: Questions) -> NvLinks:
    """Links that are up. Asks for every number: a gap is no end, and the library's largest
    number is beyond what boards have (there InvalidArgument and NotSupported both come)."""
    switched = 0
    peers: dict[str, int] = {}
    for link in range(MAX_NVLINKS):
        if _is_up(api, handle, link, questions):
            end = _end(api, handle, link, sysfs, questions)
            switched += not end
            peers |= {end: peers.get(end, 0) + 1} if end else {}
        elif FACT in questions.causes:
            return NvLinks(seen=False)
    seen = bool(switched or peers) or not _is_vgpu(api, handle, questions)
    return NvLinks(switched, peers, seen)


def _is_up(api: Nvml, handle: Handle, link: int, questions: Questions) -> bool:
    state = questions.ask(
        FACT, lambda: api.nvmlDeviceGetNvLinkState(handle, link), may_not_exist=True
    )
    return state == 1


def _end(api: Nvml, handle: Handle, link: int, sysfs: Path, questions: Questions) -> str:
    """PCI address of the peer; empty = a switch. Without a type, the address and its class
    decide as in NCCL, and an end that is hidden is a switch: virtual machines hide those."""
    kind = questions.ask(
        "nvlink_remote_type",
        lambda: api.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link),
        may_not_exist=True,
    )
    if kind == REMOTE_SWITCH:
        return ""
    info = questions.ask(
        "nvlink_remote_pci",
        lambda: api.nvmlDeviceGetNvLinkRemotePciInfo(handle, link),
        may_not_exist=True,
    )
    address = "" if info is None else bus_id_of(info)
    pci_class = read_text(sysfs / "bus/pci/devices" / address / "class") if address else ""
    return "" if pci_class.startswith(SWITCH_CLASS) else address


def _is_vgpu(api: Nvml, handle: Handle, questions: Questions) -> bool:
    """A vGPU guest is told of no NVLink whether there is one or not."""
    mode = questions.ask(
        "virtualization", lambda: api.nvmlDeviceGetVirtualizationMode(handle), may_not_exist=True
    )
    return mode == VGPU_GUEST


def bus_id_of(info: PciInfo) -> str:
    """Linux' form; empty for the all-ones address that stands for a hidden device."""
    text = info.busId.decode() if isinstance(info.busId, bytes) else info.busId
    return "" if text.upper().startswith("FFFFFFF") else normal_bus_id(text)
