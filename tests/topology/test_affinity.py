"""Cost and weight: the order they give, and how far they are from what was measured."""

import csv
from itertools import pairwise
from pathlib import Path

import pytest

from sits_protos.v1 import topology_pb2 as pb
from sits_scheduling.affinity import HALF_COST_S
from sits_scheduling.links import Knowledge, LinkKind, cost_s_per_mb
from sits_topology.affinity import weight
from sits_topology.bandwidth import pcie_generation_gbps, per_nvlink_gbps
from sits_topology.model import DeviceKind, Health

PATHS = [LinkKind.PIX, LinkKind.PXB, LinkKind.PHB, LinkKind.NODE, LinkKind.SYS, LinkKind.NETWORK]

A100_PAIR = cost_s_per_mb(LinkKind.NVLINK, bandwidth_gbps=12 * per_nvlink_gbps((8, 0)))
H100_SWITCH = cost_s_per_mb(LinkKind.NVLINK, bandwidth_gbps=18 * per_nvlink_gbps((9, 0)))


def measured(data: Path, machine: str, collective: str) -> dict[tuple[int, int], float]:
    with (data / "netprofile/medians-64mib.tsv").open() as file:
        rows = [r for r in csv.DictReader(file, delimiter="\t") if r["machine"] == machine]
    return {
        (int(r["gpus"]), int(r["gpus_per_node"])): float(r["median_ms"])
        for r in rows
        if r["collective"] == collective
    }


def test_the_device_itself_costs_nothing_and_weighs_one():
    assert cost_s_per_mb(LinkKind.SELF) == 0.0
    assert weight(0.0) == 1.0


def test_weight_falls_as_cost_grows_and_stays_above_zero():
    costs = [0.0, 1e-9, 1e-6, HALF_COST_S, 1e-3, 1.0, 1e6]
    weights = [weight(cost) for cost in costs]
    assert all(nearer > farther for nearer, farther in pairwise(weights))
    assert weights[-1] > 0.0
    assert weight(HALF_COST_S) == pytest.approx(0.5)


@pytest.mark.parametrize("gbps", [6.0, 12.0, 24.0, 48.0, 96.0])
def test_of_two_pcie_paths_of_one_speed_the_nearer_kind_is_cheaper(gbps):
    costs = [cost_s_per_mb(kind, bandwidth_gbps=gbps) for kind in PATHS]
    assert all(nearer < farther for nearer, farther in pairwise(costs))


@pytest.mark.parametrize("kind", [kind for kind in LinkKind if kind > LinkKind.SELF])
def test_more_bandwidth_is_never_dearer(kind):
    costs = [cost_s_per_mb(kind, bandwidth_gbps=gbps) for gbps in (1, 10, 100, 1000)]
    assert all(slower > faster for slower, faster in pairwise(costs))


@pytest.mark.parametrize("generation", [3, 4, 5])
def test_nvlink_beats_the_nearest_pcie_path_of_its_time(generation):
    capability = {3: (7, 0), 4: (8, 0), 5: (9, 0)}[generation]
    gbps = pcie_generation_gbps(generation, 16)
    pcie = cost_s_per_mb(LinkKind.PIX, Knowledge.ABSENT, gbps)
    assert cost_s_per_mb(LinkKind.NVLINK, bandwidth_gbps=4 * per_nvlink_gbps(capability)) < pcie


@pytest.mark.parametrize("kind", PATHS)
def test_unknown_absent_and_degraded_differ(kind):
    cost = {knowledge: cost_s_per_mb(kind, knowledge, 24.0) for knowledge in Knowledge}
    nvlink = cost_s_per_mb(LinkKind.NVLINK)
    assert nvlink < cost[Knowledge.UNKNOWN] < cost[Knowledge.ABSENT] < cost[Knowledge.DEGRADED]


def test_pairs_with_unknown_nvlink_are_still_ranked_by_their_path():
    costs = [cost_s_per_mb(kind, Knowledge.UNKNOWN, 24.0) for kind in PATHS]
    assert all(nearer < farther for nearer, farther in pairwise(costs))


def test_a_degraded_nvlink_is_dearer_than_a_whole_one_with_as_many_links():
    whole = cost_s_per_mb(LinkKind.NVLINK, Knowledge.KNOWN, 200.0)
    assert cost_s_per_mb(LinkKind.NVLINK, Knowledge.DEGRADED, 200.0) > whole


def test_an_unknown_path_is_neither_the_best_nor_the_worst():
    unknown = cost_s_per_mb(LinkKind.UNSPECIFIED, Knowledge.UNKNOWN)
    assert cost_s_per_mb(LinkKind.PIX) < unknown < cost_s_per_mb(LinkKind.SYS)


def test_sockets_that_are_farther_apart_cost_more():
    costs = [cost_s_per_mb(LinkKind.SYS, numa_distance=distance) for distance in (12, 21, 32)]
    assert all(nearer < farther for nearer, farther in pairwise(costs))


def test_a_measured_link_costs_what_was_measured():
    cost = cost_s_per_mb(LinkKind.SYS, Knowledge.ABSENT, 4.0, measured=True)
    assert cost == pytest.approx(1e6 / 4e9)


def test_leaving_a_bridge_pair_costs_about_what_was_measured(data):
    times = measured(data, "a100-bridge-pairs", "all_reduce")
    slowdown = times[4, 4] / times[2, 2]
    across = cost_s_per_mb(LinkKind.SYS, Knowledge.ABSENT, pcie_generation_gbps(4, 16))
    assert across / A100_PAIR == pytest.approx(slowdown, rel=0.25)


@pytest.mark.parametrize(
    ("machine", "inside"), [("a100-nvswitch", A100_PAIR), ("h100-nvswitch", H100_SWITCH)]
)
def test_another_node_is_as_much_farther_than_nvswitch_as_was_measured(data, machine, inside):
    times = measured(data, machine, "send_recv")
    gbps = (64 << 20) / times[2, 1] / 1e6
    outside = cost_s_per_mb(LinkKind.NETWORK, bandwidth_gbps=gbps)
    assert outside / inside == pytest.approx(times[2, 1] / times[2, 2], rel=0.4)


@pytest.mark.parametrize(
    ("machine", "inside"), [("a100-nvswitch", A100_PAIR), ("h100-nvswitch", H100_SWITCH)]
)
def test_nvswitch_bandwidth_is_near_the_measured_one(data, machine, inside):
    measured_s_per_mb = measured(data, machine, "send_recv")[2, 2] / (64 << 20) * 1e3
    assert inside == pytest.approx(measured_s_per_mb, rel=0.1)


def test_numbers_are_those_of_the_contract():
    assert {k.name: k.value for k in LinkKind} == _numbers(pb.LinkKind, "LINK_KIND_")
    for ours, theirs, prefix in (
        (Knowledge, pb.LinkKnowledge, "LINK_KNOWLEDGE_"),
        (DeviceKind, pb.DeviceKind, "DEVICE_KIND_"),
        (Health, pb.DeviceHealth, "DEVICE_HEALTH_"),
    ):
        contract = _numbers(theirs, prefix)
        del contract["UNSPECIFIED"]
        assert {item.name: item.value for item in ours} == contract


def _numbers(enum, prefix):
    return {name.removeprefix(prefix): number for name, number in enum.items()}
