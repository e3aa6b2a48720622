"""The models of links against all-reduces measured on four H200 behind NVSwitch."""

import csv
from pathlib import Path

import pytest

from sits_scheduling.fabric import Cluster, Node
from sits_scheduling.links import Link, LinkKind
from sits_sim.link_times import H100, switched_us

FILE = Path(__file__).parent / "data/h200-x4-all-reduce.tsv"
LARGE = 16 << 20
PEER_GBPS = 385.0
"""Of a copy, as probed there."""


def measured() -> list[tuple[int, int, float]]:
    with FILE.open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    return [(int(r["gpus"]), int(r["bytes"]), float(r["median_us"])) for r in rows]


LARGE_ONES = [row for row in measured() if row[1] >= LARGE]
SMALL_ONES = [row for row in measured() if row[1] < LARGE]


def of_scheduler(gpus: int, size_bytes: int) -> float:
    names = [str(n) for n in range(4)]
    link = Link(LinkKind.NVLINK, PEER_GBPS, measured=True)
    links = {(a, b): link for a in names for b in names if a != b}
    return Cluster([Node.of_links("h", names, links)]).all_reduce_us(range(gpus), size_bytes)


@pytest.mark.parametrize(("gpus", "size_bytes", "us"), LARGE_ONES)
def test_the_simulators_table_is_within_an_eighth_from_16_mib_on(gpus, size_bytes, us):
    """H200 links are those of H100, where the table was measured."""
    assert switched_us(H100, gpus, size_bytes) == pytest.approx(us, rel=0.14)


@pytest.mark.parametrize(("gpus", "size_bytes", "us"), LARGE_ONES)
def test_the_schedulers_model_is_within_a_third_from_16_mib_on(gpus, size_bytes, us):
    assert of_scheduler(gpus, size_bytes) == pytest.approx(us, rel=0.33)


@pytest.mark.parametrize(("gpus", "size_bytes", "us"), SMALL_ONES)
def test_small_ones_are_within_the_factor_that_the_choice_of_algorithm_makes(gpus, size_bytes, us):
    for model_us in (switched_us(H100, gpus, size_bytes), of_scheduler(gpus, size_bytes)):
        assert us / 2.3 < model_us < us * 2.3


def test_models_and_measurement_agree_that_four_take_longer_than_two():
    times = {(gpus, size): us for gpus, size, us in measured()}
    for size in {size for _, size in times}:
        assert times[4, size] > times[2, size]
        assert switched_us(H100, 4, size) > switched_us(H100, 2, size)
        assert of_scheduler(4, size) > of_scheduler(2, size)
