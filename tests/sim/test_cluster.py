"""Clusters and what collectives cost on them, against the measured tables."""

from itertools import pairwise

import numpy as np
import pytest

from sits_sim.cluster import Cluster, mixed
from sits_sim.link_times import curves, ring_share
from sits_sim.service_times import TRANSFORMER

MB64 = 64 << 20


@pytest.fixture(scope="module")
def large() -> Cluster:
    return mixed(1024)


@pytest.mark.parametrize("gpus", [16, 64, 1024])
def test_a_mixed_cluster_has_as_many_gpus_as_asked_for(gpus: int) -> None:
    cluster = mixed(gpus)
    assert len(cluster.gpus) == gpus
    assert len({gpu.id for gpu in cluster.gpus}) == gpus
    assert [gpu.index for gpu in cluster.gpus] == list(range(gpus))


def test_crossing_a_bridge_pair_costs_about_twelve_times(large: Cluster) -> None:
    host = [gpu for gpu in large.gpus if gpu.shape.name == "h100_bridges"][:8]
    pair = [host[0], host[5]]
    assert host[0].shape.bridged(pair[0].device, pair[1].device)
    inside = large.all_reduce_us(pair, MB64)
    crossing = large.all_reduce_us(host[:4], MB64)
    assert 6 <= crossing / inside <= 13


def test_leaving_the_node_costs_more_than_staying(large: Cluster) -> None:
    inside = large.all_reduce_us(large.gpus[:2], MB64)
    outside = large.all_reduce_us([large.gpus[0], large.gpus[8]], MB64)
    assert outside / inside > 5


def test_one_gpu_needs_no_collective(large: Cluster) -> None:
    assert large.all_reduce_us(large.gpus[:1], MB64) == 0.0


@pytest.mark.parametrize("key", sorted(curves()))
def test_larger_messages_never_take_less_time(key: tuple[str, str, int, int]) -> None:
    times = [curves()[key].us(size) for size in np.geomspace(1, 1 << 30, 60)]
    assert all(a <= b * (1 + 1e-12) for a, b in pairwise(times))


def test_a_ring_sends_twice_the_size_at_most() -> None:
    assert [ring_share(n) for n in (2, 4, 8)] == [1.0, 1.5, 1.75]


def test_service_times_are_the_measured_ones_and_grow_with_the_batch() -> None:
    table = TRANSFORMER.table_ns()
    assert [table[rows] for rows in (1, 8, 32)] == [198_000, 242_000, 455_000]
    assert table[0] == 0
    assert table == sorted(table)
    assert TRANSFORMER.of(33) == pytest.approx(455 + 198)
