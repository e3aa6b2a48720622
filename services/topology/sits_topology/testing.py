"""A fake NVML for tests, with cards as wanted."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pynvml

from sits_topology.nvml_api import AFFINITY_WORDS, Handle

T = TypeVar("T")

HIDDEN = "FFFFFFFF:FF:FF.0"
"""Address of an NVLink end that a virtual machine may not see."""

SWITCH, GPU = 2, 0


@dataclass(frozen=True)
class FakePciInfo:
    busId: bytes | str  # noqa: N815 - NVML's name


@dataclass(frozen=True)
class FakeMemory:
    total: int
    free: int


@dataclass(frozen=True)
class FakeUtilization:
    gpu: int


@dataclass(frozen=True)
class FakeNvLink:
    up: bool = True
    remote_type: int = SWITCH
    remote: str = HIDDEN


@dataclass(frozen=True)
class FakeSlice:
    """A MIG slice."""

    uuid: str
    name: str = "NVIDIA H200 MIG 1g.18gb"
    memory: FakeMemory = FakeMemory(18 << 30, 17 << 30)


@dataclass(frozen=True)
class FakeCard:
    """A card as NVML would describe it. `uuid` None = NVML does not tell."""

    bus_id: bytes | str
    uuid: bytes | str | None = None
    name: bytes | str = "NVIDIA H200"
    memory: FakeMemory = FakeMemory(150_754_820_096, 150_109_880_320)
    percent: int = 0
    generation: int = 5
    width: int = 16
    capability: tuple[int, int] = (9, 0)
    memory_nodes: tuple[int, ...] = (1,)
    """64-bit words."""
    nvlinks: tuple[FakeNvLink, ...] = ()
    slices: tuple[FakeSlice, ...] | None = None
    """None = MIG is off."""
    virtualization: int = 0
    own_node: int | None = None
    """NUMA node of its memory, on Grace."""
    clock_reasons: int = 1
    """Idle."""
    uncorrected: int = 0
    remapped_rows: tuple[int, int, int, int] = (0, 0, 0, 0)


@dataclass(frozen=True)
class FakeEvent:
    """By default an Xid."""

    device: FakeCard
    eventData: int  # noqa: N815 - NVML's name
    eventType: int = 8  # noqa: N815 - NVML's name


@dataclass
class FakeNvml:
    """Stands for the `pynvml` module.

    `failures` maps a function's name to the error it raises, or to None for an answer None.
    """

    cards: Sequence[FakeCard]
    ancestors: Mapping[frozenset[int], int] = field(default_factory=dict)
    """NVML's levels by a pair of indices; 50 (SYSTEM) elsewhere."""
    peer_access: Mapping[frozenset[int], int] = field(default_factory=dict)
    """NVLink P2P status by a pair of indices; elsewhere what the links suggest."""
    failures: dict[str, Exception | None] = field(default_factory=dict)
    events: list[FakeEvent] = field(default_factory=list)
    """Taken out by who waits for them."""
    started: int = 0

    def nvmlInit(self) -> None:
        self._answer("nvmlInit", lambda: 0)
        self.started += 1

    def nvmlShutdown(self) -> None:
        self.started -= 1

    def nvmlDeviceGetCount(self) -> int:
        return self._answer("nvmlDeviceGetCount", lambda: len(self.cards))

    def nvmlDeviceGetHandleByIndex(self, index: int, /) -> Handle:
        return self._answer("nvmlDeviceGetHandleByIndex", lambda: self.cards[index])

    def nvmlDeviceGetUUID(self, handle: Handle, /) -> bytes | str:
        return self._answer("nvmlDeviceGetUUID", lambda: _uuid(handle))

    def nvmlDeviceGetName(self, handle: Handle, /) -> bytes | str:
        return self._answer("nvmlDeviceGetName", lambda: _either(handle).name)

    def nvmlDeviceGetPciInfo(self, handle: Handle, /) -> FakePciInfo:
        return self._answer("nvmlDeviceGetPciInfo", lambda: FakePciInfo(_card(handle).bus_id))

    def nvmlDeviceGetMemoryInfo(self, handle: Handle, /) -> FakeMemory:
        return self._answer("nvmlDeviceGetMemoryInfo", lambda: _either(handle).memory)

    def nvmlDeviceGetUtilizationRates(self, handle: Handle, /) -> FakeUtilization:
        name = "nvmlDeviceGetUtilizationRates"
        return self._answer(name, lambda: FakeUtilization(_card(handle).percent))

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: Handle, /) -> int:
        name = "nvmlDeviceGetMaxPcieLinkGeneration"
        return self._answer(name, lambda: _card(handle).generation)

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: Handle, /) -> int:
        return self._answer("nvmlDeviceGetCurrPcieLinkWidth", lambda: _card(handle).width)

    def nvmlDeviceGetCudaComputeCapability(self, handle: Handle, /) -> tuple[int, int]:
        name = "nvmlDeviceGetCudaComputeCapability"
        return self._answer(name, lambda: _card(handle).capability)

    def nvmlDeviceGetMemoryAffinity(
        self, handle: Handle, words: int, scope: int, /
    ) -> Sequence[int]:
        def answer() -> list[int]:
            nodes = list(_card(handle).memory_nodes)
            return nodes + [0] * (AFFINITY_WORDS - len(nodes))

        return self._answer("nvmlDeviceGetMemoryAffinity", answer)

    def nvmlDeviceGetNumaNodeId(self, handle: Handle, /) -> int:
        return self._answer("nvmlDeviceGetNumaNodeId", lambda: _own_node(handle))

    def nvmlDeviceGetVirtualizationMode(self, handle: Handle, /) -> int:
        name = "nvmlDeviceGetVirtualizationMode"
        return self._answer(name, lambda: _card(handle).virtualization)

    def nvmlDeviceGetMigMode(self, handle: Handle, /) -> Sequence[int]:
        on = int(_card(handle).slices is not None)
        return self._answer("nvmlDeviceGetMigMode", lambda: [on, on])

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Handle, /) -> int:
        return self._answer("nvmlDeviceGetMaxMigDeviceCount", lambda: 7)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Handle, index: int, /) -> Handle:
        def answer() -> Handle:
            slices = _card(handle).slices or ()
            if index >= len(slices):
                raise pynvml.NVMLError_NotFound
            return slices[index]

        return self._answer("nvmlDeviceGetMigDeviceHandleByIndex", answer)

    def nvmlDeviceGetNvLinkState(self, handle: Handle, link: int, /) -> int:
        return self._answer("nvmlDeviceGetNvLinkState", lambda: int(_nvlink(handle, link).up))

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: Handle, link: int, /) -> int:
        name = "nvmlDeviceGetNvLinkRemoteDeviceType"
        return self._answer(name, lambda: _nvlink(handle, link).remote_type)

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: Handle, link: int, /) -> FakePciInfo:
        name = "nvmlDeviceGetNvLinkRemotePciInfo"
        return self._answer(name, lambda: FakePciInfo(_nvlink(handle, link).remote))

    def nvmlDeviceGetTopologyCommonAncestor(self, one: Handle, other: Handle, /) -> int:
        level = self.ancestors.get(self._pair(one, other), 50)
        return self._answer("nvmlDeviceGetTopologyCommonAncestor", lambda: level)

    def nvmlDeviceGetP2PStatus(self, one: Handle, other: Handle, index: int, /) -> int:
        joined = _card(one).nvlinks and _card(other).nvlinks
        status = self.peer_access.get(self._pair(one, other), 0 if joined else 5)
        return self._answer("nvmlDeviceGetP2PStatus", lambda: status)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Handle, /) -> int:
        name = "nvmlDeviceGetCurrentClocksEventReasons"
        return self._answer(name, lambda: _card(handle).clock_reasons)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Handle, /) -> int:
        name = "nvmlDeviceGetCurrentClocksThrottleReasons"
        return self._answer(name, lambda: _card(handle).clock_reasons)

    def nvmlDeviceGetTotalEccErrors(self, handle: Handle, kind: int, counter: int, /) -> int:
        return self._answer("nvmlDeviceGetTotalEccErrors", lambda: _card(handle).uncorrected)

    def nvmlDeviceGetRemappedRows(self, handle: Handle, /) -> Sequence[int]:
        return self._answer("nvmlDeviceGetRemappedRows", lambda: _card(handle).remapped_rows)

    def nvmlEventSetCreate(self) -> object:
        return self._answer("nvmlEventSetCreate", object)

    def nvmlEventSetFree(self, events: object, /) -> None: ...

    def nvmlDeviceRegisterEvents(self, handle: Handle, types: int, events: object, /) -> None:
        self._answer("nvmlDeviceRegisterEvents", lambda: None)

    def nvmlEventSetWait_v2(self, events: object, timeout_ms: int, /) -> FakeEvent:
        if not self.events:
            raise pynvml.NVMLError_Timeout
        return self.events.pop(0)

    def _pair(self, one: Handle, other: Handle) -> frozenset[int]:
        return frozenset(i for i, card in enumerate(self.cards) if card is one or card is other)

    def _answer(self, name: str, answer: Callable[[], T]) -> T:
        if name not in self.failures:
            return answer()
        failure = self.failures[name]
        if failure is None:
            return None  # type: ignore[return-value] # some drivers do
        raise failure


def _card(handle: Handle) -> FakeCard:
    if not isinstance(handle, FakeCard):
        raise pynvml.NVMLError_InvalidArgument
    return handle


def _either(handle: Handle) -> FakeCard | FakeSlice:
    return handle if isinstance(handle, FakeSlice) else _card(handle)


def _uuid(handle: Handle) -> bytes | str:
    uuid = _either(handle).uuid
    if uuid is None:
        raise pynvml.NVMLError_NotSupported
    return uuid


def _own_node(handle: Handle) -> int:
    node = _card(handle).own_node
    if node is None:
        raise pynvml.NVMLError_NotSupported
    return node


def _nvlink(handle: Handle, link: int) -> FakeNvLink:
    """Boards answer InvalidArgument for the numbers that they do not have."""
    links = _card(handle).nvlinks
    if link >= len(links):
        raise (pynvml.NVMLError_InvalidArgument if links else pynvml.NVMLError_NotSupported)
    return links[link]
