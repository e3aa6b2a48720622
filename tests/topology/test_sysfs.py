"""A machine without a GPU: its CPU nodes are the devices."""

import os
from pathlib import Path

import pytest

from sits_scheduling.links import Knowledge, LinkKind
from sits_topology.cpulist import from_words, parse_list, parse_mask
from sits_topology.host import HostSource
from sits_topology.model import DeviceKind, TopologyError
from sits_topology.pcipaths import normal_bus_id
from sits_topology.snapshot import link_cost_s
from sits_topology.testing_sysfs import add_nic, add_pci, make_sysfs


def test_each_numa_node_with_cpus_is_a_device(two_nodes):
    topology = HostSource(two_nodes).read()
    assert topology.sources == ("sysfs",)
    assert [device.id for device in topology.devices] == ["cpu:0", "cpu:1"]
    second = topology.device("cpu:1")
    assert (second.kind, second.numa_node, second.cpus) == (DeviceKind.CPU, 1, tuple(range(16, 32)))
    assert second.memory_total_bytes == 64 << 30
    assert second.memory_free_bytes == 33 << 30


def test_nodes_with_memory_only_are_no_devices(tmp_path):
    sysfs = make_sysfs(tmp_path, {0: "0-7", 2: "", 10: ""})
    assert [device.id for device in HostSource(sysfs).read().devices] == ["cpu:0"]


def test_a_kernel_without_numa_is_one_node_with_the_cpus_of_this_process(tmp_path):
    (device,) = HostSource(tmp_path).read().devices
    assert device.id == "cpu:0"
    assert device.cpus == tuple(sorted(os.sched_getaffinity(0)))
    assert device.memory_total_bytes is None
    assert set(device.missing) == {"numa", "memory"}


def test_farther_nodes_cost_more(tmp_path):
    distances = [[10, 12, 32], [12, 10, 32], [32, 32, 10]]
    sysfs = make_sysfs(tmp_path, {0: "0-3", 1: "4-7", 2: "8-11"}, distances)
    topology = HostSource(sysfs).read()
    near, far = topology.link("cpu:0", "cpu:1"), topology.link("cpu:0", "cpu:2")
    assert (near.kind, near.numa_distance, far.numa_distance) == (LinkKind.SYS, 12, 32)
    assert link_cost_s(near) < link_cost_s(far)


def test_node_numbers_with_gaps_keep_their_distances(tmp_path):
    sysfs = make_sysfs(tmp_path, {1: "0-3", 3: "4-7"}, [[10, 21], [21, 10]])
    assert HostSource(sysfs).read().link("cpu:1", "cpu:3").numa_distance == 21


def test_virtual_functions_and_devices_off_the_pci_bus_are_no_nics(one_node):
    card = add_pci(one_node, "pci0000:00/0000:00:03.0", 0)
    virtual = add_pci(one_node, "pci0000:00/0000:00:04.0", 0)
    (virtual / "physfn").symlink_to(card)
    add_nic(one_node, "eth0", card)
    add_nic(one_node, "eth0v0", virtual)
    (one_node / "class/net/lo").mkdir()
    topology = HostSource(one_node).read()
    assert [d.id for d in topology.of_kind(DeviceKind.NIC)] == ["nic:eth0"]


def test_a_nic_below_a_virtio_device_is_found_at_its_pci_parent(one_node):
    parent = add_pci(one_node, "pci0000:00/0000:00:03.0")
    (parent / "virtio0").mkdir()
    add_nic(one_node, "eth0", parent / "virtio0")
    nic = HostSource(one_node).read().device("nic:eth0")
    assert (nic.pci_bus_id, nic.numa_node) == ("0000:00:03.0", 0)


def test_a_nic_of_unknown_node_has_an_unknown_path(two_nodes):
    add_nic(two_nodes, "eth0", add_pci(two_nodes, "pci0000:00/0000:00:03.0", -1))
    topology = HostSource(two_nodes).read()
    assert topology.device("nic:eth0").missing == ("numa_node",)
    link = topology.link("nic:eth0", "cpu:0")
    assert (link.kind, link.knowledge) == (LinkKind.UNSPECIFIED, Knowledge.UNKNOWN)


def test_this_machine_reads_as_it_is():
    cpus = HostSource(Path("/sys")).read().of_kind(DeviceKind.CPU)
    assert set().union(*(device.cpus for device in cpus)) >= os.sched_getaffinity(0)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("", ()),
        ("0", (0,)),
        ("0-3,8", (0, 1, 2, 3, 8)),
        ("0,8,252-255", (0, 8, 252, 253, 254, 255)),
    ],
)
def test_cpu_lists_are_spelled_out(text, numbers):
    assert parse_list(text) == numbers


@pytest.mark.parametrize("text", ["3-1", "a", "1,,2", "0-99999999999", "-1", "1-"])
def test_what_is_no_cpu_list_is_refused(text):
    with pytest.raises(TopologyError):
        parse_list(text)


def test_masks_are_read_highest_word_first():
    assert parse_mask("00000001,80000001") == (0, 31, 32)
    assert from_words([1 << 63, 1], 64) == (63, 64)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0001:00:00.0", "0001:00:00.0"),
        ("0000:10:1c.0", "0000:10:1c.0"),
        ("00010000:AA:1F.7", "10000:aa:1f.7"),
        ("nowhere", ""),
    ],
)
def test_pci_addresses_are_written_as_linux_writes_them(text, address):
    assert normal_bus_id(text) == address
