"""Gangs stay in one link domain, take the widest ring there is, and share the load."""

import random
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits_scheduling.columns import Floats
from sits_scheduling.fabric import Cluster, Node
from sits_scheduling.gangs import RandomGangs, TopologyGangs
from sits_scheduling.links import Link, LinkKind
from sits_scheduling.rings import best_group, ring_gbps

MIB = 1 << 20
NVLINK, SYS = 240.0, 20.0


def matrix(count: int, wide: dict[tuple[int, int], float], other: float = SYS) -> Floats:
    gbps = np.full((count, count), other)
    for (i, j), value in wide.items():
        gbps[i, j] = gbps[j, i] = value
    np.fill_diagonal(gbps, 0.0)
    return gbps


# `nvidia-smi topo -m` of 8 H100 PCIe cards with crossed bridges: pairs 0-5, 1-2, 3-4, 6-7.
CROSSED = matrix(8, {(0, 5): NVLINK, (1, 2): NVLINK, (3, 4): NVLINK, (6, 7): NVLINK})


def brute(gbps: Floats, free: list[int], size: int) -> float:
    """The widest ring of any group, all of them tried."""
    best = 0.0
    for members in combinations(free, size):
        for rest in permutations(members[1:]):
            ring = (members[0], *rest)
            links = [gbps[a, b] for a, b in zip(ring, (*rest, members[0]), strict=True)]
            best = max(best, float(min(links)))
    return best


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 7), st.integers(2, 5), st.randoms(use_true_random=False))
def test_the_widest_group_is_found_exactly(count: int, size: int, rng: random.Random) -> None:
    links = {pair: rng.choice([20.0, 24.0, 50.0, 100.0, 240.0])
             for pair in combinations(range(count), 2)}  # fmt: skip
    gbps = matrix(count, links)
    found = best_group(gbps, list(range(count)), size)
    if count < size:
        assert found is None
        return
    assert found is not None
    assert len(set(found.members)) == size
    assert found.gbps == pytest.approx(brute(gbps, list(range(count)), size))
    assert ring_gbps(gbps, found.members) == pytest.approx(found.gbps)


def test_a_pair_is_a_bridge_pair() -> None:
    for _ in range(3):
        found = best_group(CROSSED, [0, 1, 2, 3, 6], 2)
        assert found is not None
        assert (set(found.members), found.gbps) == ({1, 2}, NVLINK)


def test_a_single_device_is_the_one_that_others_miss_least() -> None:
    found = best_group(CROSSED, [1, 2, 3, 6, 7], 1)
    assert found is not None
    assert found.members == (3,)  # its partner is taken anyway


def test_a_dense_machine_with_16_devices_is_searched_in_no_time() -> None:
    cube = matrix(16, dict.fromkeys(combinations(range(16), 2), NVLINK))
    split = matrix(16, {(i, j): NVLINK for i in range(9) for j in range(9, 16)})
    for gbps in (cube, split):
        found = best_group(gbps, list(range(16)), 8)
        assert found is not None
        assert found.gbps == NVLINK


def test_beyond_16_devices_groups_are_grown_from_near_neighbours() -> None:
    wide = {p: NVLINK for block in (range(24), range(24, 48)) for p in combinations(block, 2)}
    found = best_group(matrix(48, wide), list(range(48)), 8)
    assert found is not None
    assert found.gbps == NVLINK
    assert len({member // 24 for member in found.members}) == 1


def cluster(nodes: int, gbps: Floats | None = None) -> Cluster:
    inner = matrix(8, dict.fromkeys(combinations(range(8), 2), NVLINK)) if gbps is None else gbps
    names = [f"gpu{i}" for i in range(len(inner))]
    return Cluster([Node(f"h{n}", names, inner.copy()) for n in range(nodes)])


def everything(made: Cluster) -> tuple[Floats, "np.ndarray[tuple[int], np.dtype[np.bool_]]"]:
    return np.zeros(len(made)), np.ones(len(made), dtype=np.bool_)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_gang_never_leaves_its_link_domain(size: int) -> None:
    made = cluster(5)
    gangs = TopologyGangs(made, random.Random(1))
    wait, allowed = everything(made)
    for _ in range(20):
        gang = gangs.place(size, 64 * MIB, wait, allowed)
        assert gang is not None
        assert len(set(gang.devices)) == size
        assert len({made.node_of(device) for device in gang.devices}) == 1


def test_the_widest_group_wins_while_waits_are_equal() -> None:
    made = cluster(3, CROSSED)
    gang = TopologyGangs(made, random.Random(1)).place(2, 64 * MIB, *everything(made))
    assert gang is not None
    assert tuple(sorted(d % 8 for d in gang.devices)) in {(0, 5), (1, 2), (3, 4), (6, 7)}


def test_a_busy_wide_group_loses_to_a_free_narrow_one_when_that_is_sooner_done() -> None:
    made = cluster(1, CROSSED)
    wait, allowed = everything(made)
    allowed[:] = [False, True, True, True, False, False, True, False]
    gangs = TopologyGangs(made, random.Random(1))
    wait[1] = 1e3  # µs; the narrow pair needs about 3,300 for its collective, the wide 400

    def members() -> set[int]:
        gang = gangs.place(2, 64 * MIB, wait, allowed)
        assert gang is not None
        return set(gang.devices)

    assert members() == {1, 2}
    wait[1] = 1e5
    assert members() != {1, 2}


def test_no_gang_when_no_domain_has_enough_free_devices() -> None:
    made = cluster(4)
    wait, allowed = everything(made)
    allowed[::8] = allowed[1::8] = False
    gangs = TopologyGangs(made, random.Random(1))
    assert gangs.place(8, MIB, wait, allowed) is None
    gang = gangs.place(4, MIB, wait, allowed)
    assert gang is not None


def test_large_clusters_are_sampled_but_the_last_free_node_is_found() -> None:
    made = cluster(100)
    wait, allowed = everything(made)
    allowed[:] = False
    allowed[8 * 77 : 8 * 78] = True
    gang = TopologyGangs(made, random.Random(1)).place(8, MIB, wait, allowed)
    assert gang is not None
    assert set(gang.devices) == set(range(616, 624))


def test_large_nodes_are_searched_among_what_is_free() -> None:
    ring = matrix(16, {(i, (i + 1) % 16): NVLINK for i in range(16)} | {(0, 7): NVLINK})
    made = cluster(1, ring)
    wait, allowed = everything(made)
    gang = TopologyGangs(made, random.Random(1)).place(8, 64 * MIB, wait, allowed)
    assert gang is not None
    assert set(gang.devices) == set(range(8))
    allowed[:8] = False
    gang = TopologyGangs(made, random.Random(1)).place(4, 64 * MIB, wait, allowed)
    assert gang is not None
    assert min(gang.devices) >= 8


def test_topology_beats_chance_by_far() -> None:
    made = cluster(16)
    wait, allowed = everything(made)
    gangs = (TopologyGangs(made, random.Random(1)), RandomGangs(made, random.Random(1)))
    means = []
    for placement in gangs:
        found = [placement.place(4, 64 * MIB, wait, allowed) for _ in range(100)]
        means.append(np.mean([gang.collective_us for gang in found if gang]))
    assert means[1] > 5 * means[0]


def test_random_gangs_need_only_enough_free_devices() -> None:
    made = cluster(2)
    wait, allowed = everything(made)
    allowed[3:] = False
    placement = RandomGangs(made, random.Random(1))
    gang = placement.place(2, MIB, wait, allowed)
    assert gang is not None
    assert set(gang.devices) <= {0, 1, 2}
    assert placement.place(4, MIB, wait, allowed) is None


def test_a_node_of_published_costs_takes_the_slower_direction() -> None:
    costs = {("a", "b"): 1e-5, ("b", "a"): 2e-5, ("a", "c"): 1e-4, ("c", "a"): 1e-4}
    node = Node.of_costs("h", ["a", "b", "c"], costs)
    unknown = 1e-3 / Link(LinkKind.UNSPECIFIED).cost_s_per_mb
    assert node.gbps[0, 1] == node.gbps[1, 0] == pytest.approx(50.0)
    assert node.gbps[1, 2] == pytest.approx(unknown)
