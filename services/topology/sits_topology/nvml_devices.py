"""GPUs and MIG slices as NVML describes them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from sits_topology.bandwidth import pcie_generation_gbps
from sits_topology.cpulist import from_words
from sits_topology.fabric import NvLinks
from sits_topology.health import Condition
from sits_topology.host import Host
from sits_topology.model import Device, DeviceKind
from sits_topology.nvml_api import AFFINITY_NODE, AFFINITY_WORDS, MIG_ENABLED, Handle, Nvml
from sits_topology.nvml_health import condition_of
from sits_topology.nvml_nvlinks import bus_id_of, count_nvlinks
from sits_topology.pcipaths import PciPath, read_path
from sits_topology.questions import Questions

MAX_BYTES = 1 << 50
MAX_SLICES = 16


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, or a slice of one, with what is needed to find its links."""

    device: Device
    handle: Handle
    """The card's, also for a slice: NVML knows links of cards only."""
    questions: Questions
    nvlinks: NvLinks
    path: PciPath | None
    compute_capability: tuple[int, int] | None
    condition: Condition
    """The card's, also for a slice."""
    on_c2c: bool
    """Whether the card hangs on its CPU's C2C, as on Grace."""


def read_card(api: Nvml, index: int, host: Host) -> list[Gpu]:
    """The card in NVML's place `index`: itself, or its slices when MIG is on.

    Empty for a card without UUID and PCI address: nobody could name it.
    """
    handle = api.nvmlDeviceGetHandleByIndex(index)
    card = _card(api, handle, index, host)
    if card is None:
        return []
    mode = card.questions.ask(
        "mig_mode", lambda: api.nvmlDeviceGetMigMode(handle), may_not_exist=True
    )
    return list(_slices(api, card)) if mode and mode[0] == MIG_ENABLED else [card]


def _card(api: Nvml, handle: Handle, index: int, host: Host) -> Gpu | None:
    questions = Questions()
    uuid = _text(questions, "uuid", lambda: api.nvmlDeviceGetUUID(handle))
    bus_id = _bus_id(api, handle, questions)
    if not uuid and not bus_id:
        return None
    path = read_path(host.sysfs, bus_id)
    capability = questions.ask(
        "compute_capability", lambda: api.nvmlDeviceGetCudaComputeCapability(handle)
    )
    device = Device(
        id=uuid or f"pci:{bus_id}",
        kind=DeviceKind.GPU,
        name=_text(questions, "name", lambda: api.nvmlDeviceGetName(handle)),
        pci_bus_id=bus_id,
        index=index,
        numa_node=_numa_node(api, handle, path, host, questions),
        pcie_gbps=_pcie_gbps(api, handle, questions),
        utilization=_utilization(api, handle, questions),
    )
    return Gpu(
        device=_with_memory(api, handle, device, questions),
        handle=handle,
        questions=questions,
        nvlinks=count_nvlinks(api, handle, host.sysfs, questions),
        path=path,
        compute_capability=capability,
        condition=condition_of(api, handle, questions),
        on_c2c=_has_own_node(api, handle, questions),
    )


def _slices(api: Nvml, card: Gpu) -> Iterator[Gpu]:
    """NVML answers nothing of a slice but its name, UUID and memory; slices have no NVLink."""
    count = card.questions.number(
        "mig_slices", lambda: api.nvmlDeviceGetMaxMigDeviceCount(card.handle), MAX_SLICES
    )
    for place in range(count or 0):
        handle = _slice_handle(api, card, place)
        if handle is not None and (found := _slice(api, handle, card)):
            yield found


def _slice_handle(api: Nvml, card: Gpu, place: int) -> Handle | None:
    return card.questions.ask(
        "mig_slices",
        lambda: api.nvmlDeviceGetMigDeviceHandleByIndex(card.handle, place),
        may_not_exist=True,
    )


def _slice(api: Nvml, handle: Handle, card: Gpu) -> Gpu | None:
    questions = Questions()
    questions.causes.update(card.questions.causes)
    uuid = _text(questions, "uuid", lambda: api.nvmlDeviceGetUUID(handle))
    if not uuid:
        return None
    questions.note("utilization")
    device = replace(
        card.device,
        id=uuid,
        kind=DeviceKind.MIG,
        name=_text(questions, "name", lambda: api.nvmlDeviceGetName(handle)),
        utilization=None,
    )
    device = _with_memory(api, handle, device, questions)
    return replace(card, device=device, questions=questions, nvlinks=NvLinks())


def _with_memory(api: Nvml, handle: Handle, device: Device, questions: Questions) -> Device:
    memory = questions.ask("memory", lambda: api.nvmlDeviceGetMemoryInfo(handle))
    if memory is None:
        return device
    total = questions.number("memory", lambda: memory.total, MAX_BYTES)
    free = questions.number("memory", lambda: memory.free, MAX_BYTES)
    return replace(device, memory_total_bytes=total or None, memory_free_bytes=free)


def _utilization(api: Nvml, handle: Handle, questions: Questions) -> float | None:
    rates = questions.ask("utilization", lambda: api.nvmlDeviceGetUtilizationRates(handle))
    if rates is None:
        return None
    percent = questions.number("utilization", lambda: rates.gpu, 100)
    return None if percent is None else percent / 100


def _pcie_gbps(api: Nvml, handle: Handle, questions: Questions) -> float | None:
    """Highest generation at the width of now: an idle card falls back to generation 1."""
    generation = questions.number(
        "pcie_link", lambda: api.nvmlDeviceGetMaxPcieLinkGeneration(handle), 255
    )
    width = questions.number("pcie_link", lambda: api.nvmlDeviceGetCurrPcieLinkWidth(handle), 64)
    if generation is None or width is None:
        return None
    return pcie_generation_gbps(generation, width)


def _numa_node(
    api: Nvml, handle: Handle, path: PciPath | None, host: Host, questions: Questions
) -> int | None:
    """Host node next to the card: Linux' answer, else NVML's memory affinity if it is one node.

    Not nvmlDeviceGetNumaNodeId: that is the node OF the card's own memory, on Grace.
    """
    if path is not None and path.numa_node is not None:
        return path.numa_node
    if host.only_node is not None:
        return host.only_node
    words = questions.ask(
        "numa_node",
        lambda: api.nvmlDeviceGetMemoryAffinity(handle, AFFINITY_WORDS, AFFINITY_NODE),
    )
    nodes = from_words(words or (), 64)
    return nodes[0] if len(nodes) == 1 else None


def _has_own_node(api: Nvml, handle: Handle, questions: Questions) -> bool:
    """Only memory on C2C is a NUMA node. Grace in CDMM mode has none: it reads as PCIe."""
    node = questions.ask(
        "own_numa_node", lambda: api.nvmlDeviceGetNumaNodeId(handle), may_not_exist=True
    )
    return node is not None


def _bus_id(api: Nvml, handle: Handle, questions: Questions) -> str:
    info = questions.ask("pci_bus_id", lambda: api.nvmlDeviceGetPciInfo(handle))
    return "" if info is None else bus_id_of(info)


def _text(questions: Questions, fact: str, question: Callable[[], bytes | str | None]) -> str:
    return questions.ask(fact, lambda: _decoded(question())) or ""


def _decoded(text: bytes | str | None) -> str | None:
    """NVML bindings give texts as bytes or as str, depending on their version."""
    return text.decode(errors="replace") if isinstance(text, bytes) else text
