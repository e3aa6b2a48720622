"""NVM-04: cards are told apart by UUID, whatever CUDA numbers them."""

from dataclasses import replace

import pytest

from sits_topology.model import Device, DeviceKind
from sits_topology.nvml import NvmlSource
from sits_topology.testing import FakeCard, FakeMemory, FakeNvml
from sits_topology.visible import OrderUnknown, visible_devices


def card(device_id: str, name: str, bus: str, kind: DeviceKind = DeviceKind.GPU) -> Device:
    return Device(device_id, kind, name, f"0000:{bus}:00.0")


SLOW = card("GPU-1111aaaa-0000", "T4", "01")
FAST = card("GPU-1111bbbb-0000", "H200", "02")
UNLIKE = [SLOW, FAST]
ALIKE = [SLOW, replace(FAST, name="T4")]
SLICES = [
    card("MIG-aaaa", "H200 MIG", "02", DeviceKind.MIG),
    card("MIG-bbbb", "H200 MIG", "02", DeviceKind.MIG),
]
PCI = "PCI_BUS_ID"


@pytest.mark.parametrize(
    ("value", "order", "devices", "shown"),
    [
        ("1", PCI, UNLIKE, [1]),
        ("1,0", PCI, UNLIKE, [1, 0]),
        ("0", PCI, UNLIKE[::-1], [1]),
        (" 1 , 0 ", PCI, UNLIKE, [1, 0]),
        ("1", None, ALIKE, [1]),
        ("1,0", "FASTEST_FIRST", ALIKE, [1, 0]),
        (None, PCI, UNLIKE[::-1], [1, 0]),
        (None, None, ALIKE, [0, 1]),
        (None, None, [FAST], [0]),
        ("", None, UNLIKE, []),
        ("-1", PCI, UNLIKE, []),
        ("NoDevFiles", PCI, UNLIKE, []),
        ("0,-1,1", PCI, UNLIKE, [0]),
        ("0,7,1", PCI, UNLIKE, [0]),
        ("0,,1", PCI, UNLIKE, [0]),
        ("0,0", PCI, UNLIKE, []),
        ("1,1,0", PCI, UNLIKE, []),
        ("0abc", PCI, UNLIKE, [0]),
        ("1x,0", PCI, UNLIKE, [1, 0]),
        ("0x1", PCI, UNLIKE, [0]),
        ("+1", PCI, UNLIKE, [1]),
        ("01", PCI, UNLIKE, [1]),
        ("abc", PCI, UNLIKE, []),
        ("GPU-1111b,0", PCI, UNLIKE, [1]),
        ("0,GPU-1111b", PCI, UNLIKE, [0]),
        ("GPU-1111b,GPU-1111bbbb", None, UNLIKE, []),
        ("gpu-1111b", None, UNLIKE, []),
        ("GPU-", None, UNLIKE, []),
        ("99999999999999999999", PCI, UNLIKE, []),
        ("GPU-1111bbbb-0000", None, UNLIKE, [1]),
        ("GPU-1111b", None, UNLIKE, [1]),
        ("GPU-1111B", None, UNLIKE, [1]),
        ("GPU-1111bbbb-0000,GPU-1111aaaa", None, UNLIKE, [1, 0]),
        ("GPU-1111", None, UNLIKE, []),
        ("GPU-ffff", None, UNLIKE, []),
        ("MIG-bbbb", None, SLICES, [1]),
        ("MIG-aaaa,MIG-bbbb", None, SLICES, [0]),
        ("0", PCI, [], []),
        (None, None, [], []),
    ],
)
def test_cuda_visible_devices_is_read_as_the_driver_was_seen_to_read_it(
    value, order, devices, shown
):
    assert visible_devices(value, order, devices) == [devices[n] for n in shown]


@pytest.mark.parametrize("value", [None, "1", "1,0"])
@pytest.mark.parametrize("order", [None, "FASTEST_FIRST"])
def test_a_number_among_unlike_cards_is_refused_with_both_ways_out(value, order):
    with pytest.raises(OrderUnknown, match=r"CUDA_DEVICE_ORDER=PCI_BUS_ID.*GPU-<uuid>"):
        visible_devices(value, order, UNLIKE)


@pytest.mark.parametrize("value", [None, "0"])
def test_a_number_while_mig_is_on_is_refused_with_the_way_out(value):
    with pytest.raises(OrderUnknown, match="MIG-<uuid>"):
        visible_devices(value, PCI, SLICES)


def test_load_on_one_of_two_unlike_cards_shows_on_the_device_that_its_executor_names(one_node):
    """CUDA's card 0 is the faster one, NVML's is the one with the lower address."""
    slow = FakeCard("00000000:01:00.0", "GPU-slow", "T4", memory=FakeMemory(16 << 30, 15 << 30))
    fast = FakeCard("00000000:02:00.0", "GPU-fast", "H200", memory=FakeMemory(140 << 30, 139 << 30))
    nvml = FakeNvml([slow, fast])
    source = NvmlSource(one_node, nvml)
    before = source.read()
    (announced,) = visible_devices("GPU-fast", None, before.of_kind(DeviceKind.GPU))
    nvml.cards = [slow, replace(fast, percent=95, memory=FakeMemory(140 << 30, 1 << 30))]
    after = source.read()
    assert after.device(announced.id).utilization == 0.95
    assert after.device(announced.id).memory_free_bytes == 1 << 30
    assert after.device("GPU-slow") == before.device("GPU-slow")


def test_in_a_container_with_only_the_fourth_card_it_is_number_zero():
    (shown,) = visible_devices("0", None, [card("GPU-4", "H200", "04")])
    assert shown.id == "GPU-4"
