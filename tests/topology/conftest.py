"""Data files, and machines made of them."""

import json
from pathlib import Path

import pytest

from sits_topology.testing import FakeCard, FakeMemory, FakeNvLink, FakeNvml
from sits_topology.testing_sysfs import make_sysfs

DATA = Path(__file__).parent / "data"


@pytest.fixture
def data() -> Path:
    return DATA


@pytest.fixture
def one_node(tmp_path: Path) -> Path:
    """A `/sys` with one NUMA node of 32 CPUs."""
    return make_sysfs(tmp_path / "sys", {0: "0-31"})


@pytest.fixture
def two_nodes(tmp_path: Path) -> Path:
    return make_sysfs(tmp_path / "sys", {0: "0-15", 1: "16-31"})


@pytest.fixture
def h200_x2() -> FakeNvml:
    """NVML as it answered on two H200. The recording has no UUIDs."""
    return _recorded("nvml/h200-x2.json")


@pytest.fixture
def h200_x4() -> FakeNvml:
    """NVML as it answered on four H200, questions about their health included."""
    return _recorded("nvml/h200-x4.json")


def _recorded(name: str) -> FakeNvml:
    record = json.loads((DATA / name).read_text())
    pairs = {frozenset((pair["a"], pair["b"])): pair for pair in record["pairs"]}
    status = "NVML_P2P_CAPS_INDEX_NVLINK"
    return FakeNvml(
        [_recorded_card(device) for device in record["devices"]],
        {key: pair["ancestor"] for key, pair in pairs.items()},
        {key: pair["p2p"][status] for key, pair in pairs.items()},
    )


def _recorded_card(device: dict) -> FakeCard:
    memory = device["nvmlDeviceGetMemoryInfo"]
    return FakeCard(
        bus_id=device["nvmlDeviceGetPciInfo"]["busId"],
        name=device["name"],
        memory=FakeMemory(memory["total"], memory["free"]),
        percent=device["nvmlDeviceGetUtilizationRates"]["gpu"],
        generation=device["nvmlDeviceGetMaxPcieLinkGeneration"],
        width=device["nvmlDeviceGetCurrPcieLinkWidth"],
        capability=tuple(device["nvmlDeviceGetCudaComputeCapability"]),
        memory_nodes=tuple(device["mem_affinity"]),
        nvlinks=tuple(
            FakeNvLink(link["state"] == 1, link["remote_type"], link["remote_pci"]["busId"])
            for link in device["nvlink"]
        ),
        clock_reasons=device.get("nvmlDeviceGetCurrentClocksEventReasons", 1),
        uncorrected=device.get("ecc_uncorrected_volatile", 0),
        remapped_rows=tuple(device.get("nvmlDeviceGetRemappedRows", (0, 0, 0, 0))),
    )
