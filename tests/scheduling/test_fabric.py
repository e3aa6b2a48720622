"""The cost model ranks measured groups of GPUs as they were measured (data/netprofile*.csv)."""

import csv
from pathlib import Path

import pytest

from sits_scheduling.fabric import Cluster, Node
from sits_scheduling.links import Link, LinkKind, transfer_us
from sits_scheduling.rings import ring_gbps

DATA = Path(__file__).parent / "data"
SIZE = 32 << 20
SAME = 0.1
"""Groups whose medians differ by less are as good as each other."""

Group = tuple[str, int, int]


def node(host: str, links: dict[tuple[int, int], Link], count: int, other: Link) -> Node:
    names = [f"gpu{i}" for i in range(count)]
    pairs = {
        (names[i], names[j]): links.get((min(i, j), max(i, j)), other)
        for i in range(count)
        for j in range(count)
        if i != j
    }
    return Node.of_links(host, names, pairs)


def switch(gbps: float) -> list[Node]:
    return [node(f"h{n}", {}, 8, Link(LinkKind.NVLINK, gbps)) for n in range(2)]


BRIDGES = {(0, 1): Link(LinkKind.NVLINK, 240.0), (2, 3): Link(LinkKind.NVLINK, 240.0)}
"""`nvidia-smi topo -m` of such a host (Azure NC96ads A100): NV12 in pairs, SYS across."""

CLUSTERS = {
    # NVLink and PCIe as NCCL reckons them. Of the network the single flow was measured with
    # send/receive; that two adapters a node carry, each for two GPUs, is read off the
    # multi-node all-reduces, so that among those the test checks the form of the model only.
    "a100_dgx": Cluster(switch(240.0), Link(LinkKind.NETWORK, 8.2, measured=True), 2, 2),
    "h100_dgx": Cluster(switch(370.8), Link(LinkKind.NETWORK, 36.0, measured=True)),
    "a100_pairwise_nvlink": Cluster([node("h", BRIDGES, 4, Link(LinkKind.SYS, 24.0))]),
}


def devices(workers: int, per_node: int) -> list[int]:
    return [8 * n + i for n in range(workers // per_node) for i in range(per_node)]


def predicted_us(operation: str, group: Group) -> float:
    name, workers, per_node = group
    cluster = CLUSTERS[name]
    if operation == "all_reduce":
        return cluster.all_reduce_us(devices(workers, per_node), SIZE)
    link = cluster.network if per_node == 1 else Link(LinkKind.NVLINK, cluster.nodes[0].gbps[0, 1])
    return transfer_us(link, SIZE)


def measured_pairs() -> list[tuple[str, Group, Group, float]]:
    """Operation, two groups, and the median of time b / time a over all sizes from 1 MiB."""
    with (DATA / "netprofile_pairs.csv").open() as file:
        return [
            (
                row["operation"],
                (row["cluster_a"], int(row["workers_a"]), int(row["per_node_a"])),
                (row["cluster_b"], int(row["workers_b"]), int(row["per_node_b"])),
                float(row["b_over_a"]),
            )
            for row in csv.DictReader(file)
        ]


def crosses(group: Group) -> bool:
    name, workers, per_node = group
    return workers > per_node or (name == "a100_pairwise_nvlink" and workers > 2)


def ranked_pairs() -> list[tuple[str, Group, Group, float]]:
    """All pairs on one cluster, and those on different ones where a boundary decides, unless
    they are as good as each other."""
    return [
        (operation, a, b, ratio)
        for operation, a, b, ratio in measured_pairs()
        if abs(ratio - 1) >= SAME and (a[0] == b[0] or crosses(a) != crosses(b))
    ]


@pytest.mark.parametrize(("operation", "a", "b", "ratio"), ranked_pairs())
def test_measured_pairs_of_groups_rank_in_the_right_order(
    operation: str, a: Group, b: Group, ratio: float
) -> None:
    slower, faster = (b, a) if ratio > 1 else (a, b)
    assert predicted_us(operation, faster) < predicted_us(operation, slower)


def test_the_ranking_covers_every_pair_on_one_cluster_but_one_that_is_as_good() -> None:
    left_out = [
        (a, b)
        for operation, a, b, ratio in measured_pairs()
        if a[0] == b[0] and (operation, a, b, ratio) not in ranked_pairs()
    ]
    assert left_out == [(("a100_dgx", 4, 2), ("a100_dgx", 16, 8))]  # they differ by 9 %


def medians() -> dict[tuple[str, str, int, int, int], float]:
    with (DATA / "netprofile.csv").open() as file:
        return {
            (r["cluster"], r["operation"], int(r["workers"]), int(r["per_node"]), int(r["bytes"])):
            float(r["median_us"])
            for r in csv.DictReader(file)
        }  # fmt: skip


def test_crossing_a_bridge_pair_costs_6_to_12_times() -> None:
    a100 = CLUSTERS["a100_pairwise_nvlink"]
    h100 = node("h", {(0, 1): Link(LinkKind.NVLINK, 12 * 20.6)}, 4, Link(LinkKind.SYS, 48.0))
    for gbps in (a100.nodes[0].gbps, h100.gbps):
        ratio = ring_gbps(gbps, [0, 1]) / ring_gbps(gbps, [0, 1, 2, 3])
        assert 6 <= ratio <= 12.01
    times = medians()
    key = ("a100_pairwise_nvlink", "all_reduce")
    measured = times[*key, 4, 4, 64 << 20] / times[*key, 2, 2, 64 << 20]
    model = a100.all_reduce_us([0, 1, 2, 3], 64 << 20) / a100.all_reduce_us([0, 1], 64 << 20)
    assert model == pytest.approx(measured, rel=0.2)


@pytest.mark.parametrize("name", ["a100_dgx", "h100_dgx"])
def test_crossing_the_node_boundary_costs_10_to_30_times(name: str) -> None:
    times, size = medians(), 64 << 20
    key = (name, "send_recv", 2)
    measured = times[*key, 1, size] / times[*key, 2, size]
    inside = Link(LinkKind.NVLINK, CLUSTERS[name].nodes[0].gbps[0, 1])
    model = transfer_us(CLUSTERS[name].network, size) / transfer_us(inside, size)
    assert 10 <= measured <= 30
    assert model == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize("name", sorted(CLUSTERS))
def test_predicted_collectives_are_within_a_factor_of_two_at_64_mib(name: str) -> None:
    for (cluster, operation, workers, per_node, size), took in medians().items():
        if (cluster, operation, size) == (name, "all_reduce", 64 << 20):
            predicted = CLUSTERS[name].all_reduce_us(devices(workers, per_node), size)
            assert 0.5 < predicted / took < 2


def test_a_single_device_reduces_nothing() -> None:
    assert CLUSTERS["a100_dgx"].all_reduce_us([3], SIZE) == 0
