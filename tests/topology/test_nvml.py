"""What NVML answers becomes devices and links; what it does not answer is named missing."""

import math
from dataclasses import replace

import pynvml
import pytest
import structlog

from sits_core.redis_registry import MAX_RECORD_BYTES
from sits_scheduling.links import Knowledge, LinkKind
from sits_topology.model import DeviceKind, Health, Topology, TopologyError
from sits_topology.nvml import NvmlSource
from sits_topology.snapshot import link_cost_s, to_proto
from sits_topology.testing import (
    GPU,
    HIDDEN,
    FakeCard,
    FakeMemory,
    FakeNvLink,
    FakeNvml,
    FakeSlice,
)
from sits_topology.testing_sysfs import add_nic, add_pci, make_sysfs

PCI = [f"00000000:0{n}:00.0" for n in range(1, 9)]
IDS = [f"GPU-{n}" for n in range(1, 9)]
BRIDGE = 12


def cards(count: int, **facts) -> list[FakeCard]:
    return [FakeCard(PCI[n], IDS[n], **facts) for n in range(count)]


def switched(count: int) -> tuple[FakeNvLink, ...]:
    return tuple(FakeNvLink() for _ in range(count))


def bridged(one: int, other: int, count: int = BRIDGE) -> list[FakeCard]:
    """Two cards with `count` direct links."""
    return [
        FakeCard(PCI[a], IDS[a], nvlinks=tuple(FakeNvLink(True, GPU, PCI[b]) for _ in range(count)))
        for a, b in ((one, other), (other, one))
    ]


def read(nvml: FakeNvml, sysfs) -> Topology:
    return NvmlSource(sysfs, nvml).read()


def facts(topology: Topology, one: str, other: str) -> tuple[LinkKind, int | None, Knowledge]:
    link = topology.link(one, other)
    return link.kind, link.lanes, link.knowledge


# A real machine


def test_two_h200_behind_nvswitch_read_as_recorded(h200_x2, one_node):
    topology = read(h200_x2, one_node)
    first, second = topology.of_kind(DeviceKind.GPU)
    assert (first.id, second.id) == ("pci:0000:00:06.0", "pci:0000:00:07.0")
    assert first.name == "NVIDIA H200"
    assert (first.memory_total_bytes, first.memory_free_bytes) == (150754820096, 150109880320)
    assert (first.utilization, first.pcie_gbps, first.numa_node) == (0.0, 48.0, 0)
    assert (first.health, first.missing) == (Health.GOOD, ("uuid",))
    assert facts(topology, first.id, second.id) == (LinkKind.NVLINK, 18, Knowledge.KNOWN)


def test_the_recorded_nvlink_is_as_fast_as_copies_over_it_were(h200_x2, one_node):
    """386 GB/s were measured with 256 MB from GPU to GPU, 55.2 from the host."""
    topology = read(h200_x2, one_node)
    pair = topology.link("pci:0000:00:06.0", "pci:0000:00:07.0")
    assert pair.bandwidth_gbps == pytest.approx(386, rel=0.1)
    host = topology.link("pci:0000:00:06.0", "cpu:0")
    assert host.kind is LinkKind.PHB
    assert 1e6 / link_cost_s(host) / 1e9 == pytest.approx(55.2, rel=0.25)


def test_four_h200_behind_nvswitch_read_as_recorded(h200_x4, one_node):
    topology = read(h200_x4, one_node)
    gpus = [gpu.id for gpu in topology.of_kind(DeviceKind.GPU)]
    assert len(gpus) == 4
    pairs = {facts(topology, one, other) for one in gpus for other in gpus if one != other}
    assert pairs == {(LinkKind.NVLINK, 18, Knowledge.KNOWN)}
    assert {(gpu.health, gpu.missing) for gpu in topology.of_kind(DeviceKind.GPU)} == {
        (Health.GOOD, ("uuid",))
    }


# NVM-01: what is not answered

QUERIES = {
    "nvmlDeviceGetUtilizationRates": "utilization",
    "nvmlDeviceGetMemoryInfo": "memory",
    "nvmlDeviceGetName": "name",
    "nvmlDeviceGetUUID": "uuid",
    "nvmlDeviceGetPciInfo": "pci_bus_id",
    "nvmlDeviceGetMaxPcieLinkGeneration": "pcie_link",
    "nvmlDeviceGetCurrPcieLinkWidth": "pcie_link",
    "nvmlDeviceGetCudaComputeCapability": "compute_capability",
    "nvmlDeviceGetMemoryAffinity": "numa_node",
    "nvmlDeviceGetMigMode": "mig_mode",
    "nvmlDeviceGetNumaNodeId": "own_numa_node",
    "nvmlDeviceGetNvLinkState": "nvlink",
    "nvmlDeviceGetNvLinkRemoteDeviceType": "nvlink_remote_type",
    "nvmlDeviceGetTopologyCommonAncestor": "topology_ancestor",
    "nvmlDeviceGetP2PStatus": "p2p_nvlink",
    "nvmlDeviceGetTotalEccErrors": "ecc_errors",
    "nvmlDeviceGetRemappedRows": "remapped_rows",
}
CAUSES = [
    pynvml.NVMLError_NotSupported(),
    pynvml.NVMLError_Unknown(),
    pynvml.NVMLError_NoPermission(),
    pynvml.NVMLError_FunctionNotFound(),
    pynvml.NVMLError_InvalidArgument(),
    None,
]
NOT_THERE = (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument)
MAY_NOT_EXIST = (
    "mig_mode", "own_numa_node", "nvlink", "nvlink_remote_type", "ecc_errors", "remapped_rows"
)  # fmt: skip


def check_published(topology: Topology) -> None:
    """Weights for every pair, nothing invented."""
    snapshot = to_proto(topology, host="h", node_name="n")
    assert len(snapshot.weights) == len(snapshot.devices) ** 2
    for weight in snapshot.weights:
        assert 0.0 < weight.weight <= 1.0
        assert math.isfinite(weight.cost_s_per_mb)
    for device in snapshot.devices:
        for name in ("memory_total_bytes", "utilization"):
            if device.HasField(name):
                assert math.isfinite(getattr(device, name))
        if device.HasField("memory_total_bytes"):
            assert device.memory_total_bytes > 0


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("cause", CAUSES, ids=lambda c: type(c).__name__.removeprefix("NVMLError_"))
def test_one_query_without_answer_leaves_one_fact_missing(query, cause, two_nodes):
    # Of cards that NVLink joins, nobody asks for the PCI path.
    nvlinks = () if query == "nvmlDeviceGetTopologyCommonAncestor" else switched(18)
    nvml = FakeNvml(cards(2, nvlinks=nvlinks, percent=40), failures={query: cause})
    topology = read(nvml, two_nodes)
    gpus = topology.of_kind(DeviceKind.GPU)
    assert len(gpus) == 2
    check_published(topology)
    fact = QUERIES[query]
    expected = {fact}
    if fact in MAY_NOT_EXIST and isinstance(cause, NOT_THERE):
        expected = set()
    for gpu in gpus:
        assert set(gpu.missing) >= expected
        if fact == "utilization":
            assert gpu.utilization is None
        else:
            assert gpu.utilization == 0.4
        if fact == "memory":
            assert gpu.memory_total_bytes is None
            assert gpu.memory_free_bytes is None
        else:
            assert gpu.memory_total_bytes == 150_754_820_096


@pytest.mark.parametrize("cause", CAUSES, ids=lambda c: type(c).__name__.removeprefix("NVMLError_"))
def test_all_queries_without_answer_leave_devices_and_weights(cause, two_nodes):
    failures = dict.fromkeys(QUERIES.keys() - {"nvmlDeviceGetUUID"}, cause)
    topology = read(FakeNvml(cards(2, nvlinks=switched(18)), failures=failures), two_nodes)
    assert [gpu.id for gpu in topology.of_kind(DeviceKind.GPU)] == IDS[:2]
    check_published(topology)
    assert facts(topology, *IDS[:2])[2] is Knowledge.UNKNOWN


def test_numbers_that_cannot_be_true_are_missing(two_nodes):
    nonsense = FakeMemory(1 << 63, -1)
    topology = read(FakeNvml(cards(1, memory=nonsense, percent=math.nan)), two_nodes)
    gpu = topology.device(IDS[0])
    assert (gpu.memory_total_bytes, gpu.memory_free_bytes, gpu.utilization) == (None, None, None)
    assert {"memory", "utilization"} <= set(gpu.missing)


def test_each_device_and_cause_is_logged_once(two_nodes):
    failures = {
        "nvmlDeviceGetUtilizationRates": pynvml.NVMLError_NotSupported(),
        "nvmlDeviceGetMemoryInfo": pynvml.NVMLError_NotSupported(),
        "nvmlDeviceGetName": pynvml.NVMLError_NoPermission(),
    }
    source = NvmlSource(two_nodes, FakeNvml(cards(2), failures=failures))
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            source.read()
    said = [(line["device"], line["cause"]) for line in lines]
    assert sorted(said) == sorted((i, c) for i in IDS[:2] for c in ("NotSupported", "NoPermission"))
    assert lines[0]["facts"] in (["name"], ["memory", "utilization"], ["utilization", "memory"])


@pytest.mark.parametrize("as_bytes", [True, False])
def test_texts_come_as_bytes_or_as_str(as_bytes, one_node):
    card = FakeCard(b"00000000:3B:00.0", b"GPU-1", b"NVIDIA A100")
    if not as_bytes:
        card = FakeCard("00000000:3B:00.0", "GPU-1", "NVIDIA A100")
    gpu = read(FakeNvml([card]), one_node).device("GPU-1")
    assert (gpu.name, gpu.pci_bus_id) == ("NVIDIA A100", "0000:3b:00.0")


def test_a_card_without_uuid_is_named_by_its_pci_address(one_node):
    assert read(FakeNvml([FakeCard(PCI[2])]), one_node).device("pci:0000:03:00.0").index == 0


def test_a_card_that_cannot_be_named_is_left_out(one_node):
    failures = dict.fromkeys(
        ("nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo"), pynvml.NVMLError_NoPermission()
    )
    topology = read(FakeNvml(cards(1), failures=failures), one_node)
    assert topology.of_kind(DeviceKind.GPU) == []


def test_a_lost_card_is_bad_and_the_others_are_not(one_node):
    class Losing(FakeNvml):
        def nvmlDeviceGetUtilizationRates(self, handle, /):
            if handle is self.cards[1]:
                raise pynvml.NVMLError_GpuIsLost
            return super().nvmlDeviceGetUtilizationRates(handle)

    topology = read(Losing(cards(2)), one_node)
    assert topology.device(IDS[0]).health is Health.GOOD
    lost = topology.device(IDS[1])
    assert (lost.health, lost.health_reason) == (Health.BAD, "NVML says GpuIsLost")


def test_a_card_that_fell_off_the_bus_does_not_hide_the_others(one_node):
    class OffBus(FakeNvml):
        def nvmlDeviceGetHandleByIndex(self, index, /):
            if index == 0:
                raise pynvml.NVMLError_GpuIsLost
            return super().nvmlDeviceGetHandleByIndex(index)

    source = NvmlSource(one_node, OffBus(cards(2)))
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            assert [d.id for d in source.read().of_kind(DeviceKind.GPU)] == [IDS[1]]
    assert [line["event"] for line in lines] == ["topology.card_unreadable"]


def test_a_driver_that_goes_away_is_an_error_and_is_found_again(one_node):
    nvml = FakeNvml(cards(1))
    source = NvmlSource(one_node, nvml)
    source.read()
    nvml.failures["nvmlDeviceGetMemoryInfo"] = pynvml.NVMLError_Uninitialized()
    with pytest.raises(TopologyError, match="NVML does not answer"):
        source.read()
    nvml.failures.clear()
    assert source.read().device(IDS[0]).memory_total_bytes
    assert nvml.started == 2


# MIG

SLICES = (FakeSlice("MIG-a"), FakeSlice("MIG-b"))


def test_mig_slices_are_devices_and_their_card_is_not(two_nodes):
    topology = read(
        FakeNvml([FakeCard(PCI[0], IDS[0], slices=SLICES), FakeCard(PCI[1], IDS[1])]), two_nodes
    )
    assert [d.id for d in topology.of_kind(DeviceKind.MIG)] == ["MIG-a", "MIG-b"]
    assert [d.id for d in topology.of_kind(DeviceKind.GPU)] == [IDS[1]]
    part = topology.device("MIG-a")
    assert part.memory_total_bytes == 18 << 30
    assert part.pci_bus_id == "0000:01:00.0"
    check_published(topology)


def test_utilization_of_a_slice_is_missing_even_if_the_card_has_one(one_node):
    topology = read(FakeNvml([FakeCard(PCI[0], IDS[0], slices=SLICES, percent=70)]), one_node)
    part = topology.device("MIG-a")
    assert part.utilization is None
    assert "utilization" in part.missing


def test_slices_reach_each_other_through_the_host_only(two_nodes):
    nvlinks = switched(18)
    nvml = FakeNvml(
        [
            FakeCard(PCI[0], IDS[0], slices=SLICES, nvlinks=nvlinks),
            FakeCard(PCI[1], IDS[1], slices=(FakeSlice("MIG-c"),), nvlinks=nvlinks),
        ]
    )
    topology = read(nvml, two_nodes)
    assert facts(topology, "MIG-a", "MIG-b") == (LinkKind.PHB, None, Knowledge.ABSENT)
    assert facts(topology, "MIG-a", "MIG-c") == (LinkKind.SYS, None, Knowledge.ABSENT)
    assert topology.device("MIG-a").health is Health.GOOD


def test_that_slices_have_no_utilization_is_not_worth_a_log_line(one_node):
    source = NvmlSource(one_node, FakeNvml([FakeCard(PCI[0], IDS[0], slices=SLICES)]))
    with structlog.testing.capture_logs() as lines:
        source.read()
    assert lines == []


def test_a_host_of_slices_and_nics_still_fits_into_redis(two_nodes):
    for n in range(40):
        address = f"pci0000:{n:02x}/0000:{n:02x}:01.0"
        add_nic(two_nodes, f"mlx5_{n}", add_pci(two_nodes, address, n % 2), "infiniband")
    tail = "0000-1111-2222-333333333333"
    sliced = [
        FakeCard(
            PCI[n],
            f"GPU-{n:08d}-{tail}",
            slices=tuple(FakeSlice(f"MIG-{n:04d}{i:04d}-{tail}") for i in range(7)),
        )
        for n in range(8)
    ]
    snapshot = to_proto(read(FakeNvml(sliced), two_nodes), host="h" * 36, node_name="n" * 63)
    assert sum(device.kind == DeviceKind.MIG.value for device in snapshot.devices) == 56
    assert snapshot.ByteSize() < MAX_RECORD_BYTES


def test_mig_without_slices_offers_nothing(one_node):
    topology = read(FakeNvml([FakeCard(PCI[0], IDS[0], slices=())]), one_node)
    assert [d.kind for d in topology.devices] == [DeviceKind.CPU]


# NVLink


def test_through_a_switch_the_smaller_link_count_counts(one_node):
    pair = [replace(card, name=f"card {n}") for n, card in enumerate(cards(2))]
    pair = [replace(pair[0], nvlinks=switched(18)), replace(pair[1], nvlinks=switched(12))]
    topology = read(FakeNvml(pair), one_node)
    assert facts(topology, *IDS[:2]) == (LinkKind.NVLINK, 12, Knowledge.KNOWN)


def test_links_are_counted_by_state_past_gaps_and_past_the_end_of_the_board(one_node):
    gaps = tuple(FakeNvLink(up=n % 2 == 0) for n in range(18))
    topology = read(FakeNvml(cards(2, nvlinks=gaps)), one_node)
    assert facts(topology, *IDS[:2])[1] == 9


@pytest.mark.parametrize("error", [pynvml.NVMLError_InvalidArgument, pynvml.NVMLError_NotSupported])
def test_link_numbers_that_do_not_exist_may_answer_either_error(error, one_node):
    class Board(FakeNvml):
        def nvmlDeviceGetNvLinkState(self, handle, link, /):
            if link >= 18:
                raise error
            return 1

    topology = read(Board(cards(2, nvlinks=switched(36))), one_node)
    assert facts(topology, *IDS[:2])[1] == 18
    assert topology.device(IDS[0]).missing == ()


def test_bridges_join_the_pairs_that_they_name(two_nodes):
    nvml = FakeNvml(sorted(bridged(0, 3) + bridged(1, 2), key=lambda card: card.bus_id))
    topology = read(nvml, two_nodes)
    assert facts(topology, IDS[0], IDS[3]) == (LinkKind.NVLINK, BRIDGE, Knowledge.KNOWN)
    assert facts(topology, IDS[1], IDS[2]) == (LinkKind.NVLINK, BRIDGE, Knowledge.KNOWN)
    assert facts(topology, IDS[0], IDS[1])[2] is not Knowledge.KNOWN


def test_a_card_without_a_bridge_beside_bridged_ones_lost_nothing(two_nodes):
    nvml = FakeNvml([*bridged(0, 1), FakeCard(PCI[2], IDS[2])])
    topology = read(nvml, two_nodes)
    assert topology.device(IDS[2]).health is Health.GOOD
    assert facts(topology, IDS[0], IDS[2]) == (LinkKind.SYS, None, Knowledge.ABSENT)


def test_a_hidden_or_untyped_end_is_a_switch_and_an_end_of_class_bridge_too(one_node):
    add_pci(one_node, "pci0000:00/0000:00:1f.0", **{"class": "0x068000"})
    untyped = tuple(FakeNvLink(True, 255, end) for end in (HIDDEN, HIDDEN, "00000000:00:1F.0"))
    nvml = FakeNvml(cards(2, nvlinks=untyped), peer_access={frozenset((0, 1)): 0})
    assert facts(read(nvml, one_node), *IDS[:2]) == (LinkKind.NVLINK, 3, Knowledge.KNOWN)


def test_no_link_that_can_exist_is_absent_and_one_that_may_not_be_seen_is_unknown(two_nodes):
    absent = read(FakeNvml(cards(2)), two_nodes)
    assert facts(absent, *IDS[:2]) == (LinkKind.SYS, None, Knowledge.ABSENT)
    guest = read(FakeNvml(cards(2, virtualization=2)), two_nodes)
    assert facts(guest, *IDS[:2]) == (LinkKind.SYS, None, Knowledge.UNKNOWN)
    failures = {"nvmlDeviceGetNvLinkState": pynvml.NVMLError_NoPermission()}
    forbidden = read(FakeNvml(cards(2), failures=failures), two_nodes)
    assert facts(forbidden, *IDS[:2]) == (LinkKind.SYS, None, Knowledge.UNKNOWN)


def test_peer_access_proves_nvlink_that_cannot_be_counted(two_nodes):
    failures = {"nvmlDeviceGetNvLinkState": pynvml.NVMLError_NoPermission()}
    nvml = FakeNvml(cards(2, nvlinks=switched(18)), failures=failures)
    assert facts(read(nvml, two_nodes), *IDS[:2]) == (LinkKind.NVLINK, None, Knowledge.KNOWN)


def test_links_that_are_up_but_refused_are_degraded(two_nodes):
    nvml = FakeNvml(cards(2, nvlinks=switched(18)), peer_access={frozenset((0, 1)): 5})
    assert facts(read(nvml, two_nodes), *IDS[:2]) == (LinkKind.SYS, None, Knowledge.DEGRADED)


def test_a_gpu_off_its_fabric_is_degraded_and_its_peers_are_not(two_nodes):
    eight = cards(8, nvlinks=switched(18))
    eight[2] = replace(eight[2], nvlinks=tuple(FakeNvLink(up=False) for _ in range(18)))
    topology = read(FakeNvml(eight), two_nodes)
    health = [gpu.health for gpu in topology.of_kind(DeviceKind.GPU)]
    assert health == [Health.DEGRADED if n == 2 else Health.GOOD for n in range(8)]
    assert topology.device(IDS[2]).health_reason == "0 of 18 NVLinks are up"
    assert facts(topology, IDS[0], IDS[2]) == (LinkKind.SYS, None, Knowledge.DEGRADED)
    assert facts(topology, IDS[0], IDS[1]) == (LinkKind.NVLINK, 18, Knowledge.KNOWN)


def test_nvlinks_that_go_down_while_running_degrade_a_bridge_pair_and_heal(two_nodes):
    nvml = FakeNvml(bridged(0, 1))
    source = NvmlSource(two_nodes, nvml)
    source.read()
    whole = nvml.cards
    nvml.cards = [
        replace(c, nvlinks=(replace(c.nvlinks[0], up=False), *c.nvlinks[1:])) for c in whole
    ]
    hurt = source.read()
    assert facts(hurt, *IDS[:2]) == (LinkKind.NVLINK, BRIDGE - 1, Knowledge.DEGRADED)
    assert hurt.device(IDS[0]).health_reason == "11 of 12 NVLinks are up"
    nvml.cards = whole
    assert facts(source.read(), *IDS[:2]) == (LinkKind.NVLINK, BRIDGE, Knowledge.KNOWN)


def test_ranks_in_pair_before_across_pairs_before_a_lost_pair(two_nodes):
    nvml = FakeNvml(bridged(0, 1) + bridged(2, 3))
    source = NvmlSource(two_nodes, nvml)
    whole = source.read()
    nvml.cards = [replace(c, nvlinks=()) for c in nvml.cards[:2]] + list(nvml.cards[2:])
    lost = source.read()
    costs = [
        link_cost_s(whole.link(IDS[0], IDS[1])),
        link_cost_s(whole.link(IDS[0], IDS[2])),
        link_cost_s(lost.link(IDS[0], IDS[1])),
    ]
    assert costs == sorted(costs)
    assert 6 <= costs[1] / costs[0] <= 12


# PCI and NUMA


def test_levels_of_nvml_are_the_kinds_of_topo_m(two_nodes):
    expected = [LinkKind.PIX, LinkKind.PIX, LinkKind.PXB, LinkKind.PHB, LinkKind.NODE, LinkKind.SYS]
    for level, kind in zip((0, 10, 20, 30, 40, 50), expected, strict=True):
        nvml = FakeNvml(cards(2), ancestors={frozenset((0, 1)): level})
        assert read(nvml, two_nodes).link(*IDS[:2]).kind is kind


def test_without_nvmls_level_linux_tells_the_path(two_nodes):
    port = "pci0000:00/0000:00:01.0/0000:00:02.0"
    add_pci(two_nodes, f"{port}/0000:00:03.0/0000:01:00.0", 0)
    add_pci(two_nodes, f"{port}/0000:00:04.0/0000:02:00.0", 0)
    add_pci(two_nodes, "pci0000:80/0000:80:01.0/0000:03:00.0", 1)
    failures = {"nvmlDeviceGetTopologyCommonAncestor": pynvml.NVMLError_Unknown()}
    topology = read(FakeNvml(cards(3), failures=failures), two_nodes)
    assert topology.link(IDS[0], IDS[1]).kind is LinkKind.PIX
    assert topology.link(IDS[0], IDS[2]).kind is LinkKind.SYS
    assert "topology_ancestor" in topology.device(IDS[2]).missing


def test_the_host_node_is_linux_answer_then_the_only_node_then_memory_affinity(two_nodes, tmp_path):
    pair = [
        FakeCard(PCI[0], IDS[0], memory_nodes=(1,)),
        FakeCard(PCI[1], IDS[1], memory_nodes=(2,)),
    ]
    add_pci(two_nodes, "pci0000:00/0000:01:00.0", 1)
    add_pci(two_nodes, "pci0000:00/0000:02:00.0", -1)
    found = [d.numa_node for d in read(FakeNvml(pair), two_nodes).of_kind(DeviceKind.GPU)]
    assert found == [1, 1]
    alone = make_sysfs(tmp_path / "alone", {0: "0-7"})
    assert read(FakeNvml(pair), alone).device(IDS[1]).numa_node == 0


def test_a_memory_affinity_of_several_nodes_tells_no_node(two_nodes):
    topology = read(FakeNvml(cards(1, memory_nodes=(3,))), two_nodes)
    assert topology.device(IDS[0]).numa_node is None
    link = topology.link(IDS[0], "cpu:0")
    assert (link.kind, link.knowledge) == (LinkKind.UNSPECIFIED, Knowledge.UNKNOWN)
    assert 0 < link_cost_s(link) < 1


def test_a_card_whose_memory_is_a_numa_node_hangs_on_c2c_and_not_on_that_node(two_nodes):
    topology = read(FakeNvml(cards(1, own_node=10, memory_nodes=(2,))), two_nodes)
    assert topology.device(IDS[0]).numa_node == 1
    near, far = topology.link(IDS[0], "cpu:1"), topology.link(IDS[0], "cpu:0")
    assert (near.kind, far.kind) == (LinkKind.C2C, LinkKind.SYS)
    assert link_cost_s(near) < link_cost_s(far)


def test_an_idle_link_counts_with_its_highest_generation_and_its_width_of_now(one_node):
    gpu = read(FakeNvml(cards(1, generation=4, width=8)), one_node).device(IDS[0])
    assert gpu.pcie_gbps == 12.0


def test_a_nic_is_linked_to_cards_by_its_pci_path(two_nodes):
    add_pci(two_nodes, "pci0000:00/0000:00:01.0/0000:01:00.0", 0)
    speed = {"max_link_speed": "16.0 GT/s PCIe", "current_link_width": "16"}
    near = add_pci(two_nodes, "pci0000:00/0000:00:01.0/0000:0a:00.0", 0, **speed)
    far = add_pci(two_nodes, "pci0000:80/0000:80:01.0/0000:8a:00.0", 1)
    add_nic(two_nodes, "mlx5_0", near, "infiniband")
    add_nic(two_nodes, "ib0", near)
    add_nic(two_nodes, "eth0", far)
    topology = read(FakeNvml(cards(1)), two_nodes)
    assert [d.id for d in topology.of_kind(DeviceKind.NIC)] == ["nic:mlx5_0", "nic:eth0"]
    link = topology.link(IDS[0], "nic:mlx5_0")
    assert (link.kind, link.bandwidth_gbps) == (LinkKind.PIX, 24.0)
    assert topology.link(IDS[0], "nic:eth0").kind is LinkKind.SYS
    assert topology.link("nic:eth0", "cpu:1").kind is LinkKind.PHB
