"""Predictions for a small mesh against what queueing theory says of it."""

from dataclasses import replace

import numpy as np
import pytest

from sits_scheduling.batching import BatchPolicy
from sits_sim.agree import Measured, Prediction, Setup, capacity_per_s, predict
from sits_sim.load import poisson

ALONE = Setup(instances=1, policy=BatchPolicy(0), slots=1)
RUN_US = 1000.0


def measured(way_us: float = 0.0, front_us: float = 0.0) -> Measured:
    return Measured({1: RUN_US, 8: 3000.0}, way_us, front_us)


def foretold(known: Measured, setup: Setup, per_s: float, requests: int) -> Prediction:
    seconds = requests / per_s
    at_s = poisson(per_s, seconds, np.random.default_rng(1))
    return predict(known, setup, at_s, warm_up_s=0.2 * seconds)


def test_a_request_alone_takes_its_way_and_its_run() -> None:
    found = foretold(measured(way_us=400.0, front_us=40.0), ALONE, 10.0, requests=500)
    assert found.p50_ms == pytest.approx(1.4, rel=0.01)
    assert found.throughput_per_s == pytest.approx(10.0, rel=0.15)


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_one_instance_without_batches_waits_as_an_m_d_1_queue(load: float) -> None:
    """Pollaczek and Khinchine: mean wait = load × run / (2 (1 - load)); the median is known
    to lie below the mean, the 99th percentile near ln(100) means of the busy ones above."""
    found = foretold(measured(), ALONE, load * 1000.0, requests=20_000)
    mean_wait_ms = load / (2 * (1 - load))
    assert found.utilisation == pytest.approx(load, rel=0.08)
    assert found.p50_ms <= 1.0 + mean_wait_ms
    assert 1.0 + 2.5 * mean_wait_ms < found.p99_ms < 1.0 + 9 * mean_wait_ms


def test_a_machine_that_is_slow_for_a_while_is_slow_just_then() -> None:
    at_s = np.arange(100) * 0.1
    slow_from_4_to_7_s = replace(measured(), pace=((0.0, 1.0), (4.0, 3.0), (7.0, 1.0)))
    found = predict(slow_from_4_to_7_s, ALONE, at_s)
    assert found.p50_ms == pytest.approx(1.0, rel=0.01)
    assert found.p99_ms == pytest.approx(3.0, rel=0.01)
    assert predict(slow_from_4_to_7_s, ALONE, at_s, warm_up_s=7.5).p99_ms == pytest.approx(1.0)


def test_beyond_capacity_throughput_stays_at_capacity() -> None:
    setup = Setup(instances=2, policy=BatchPolicy(8))
    most = capacity_per_s(measured(), setup)
    assert most == pytest.approx(2 * 8 * 1e6 / 3000.0)
    found = foretold(measured(), setup, 1.5 * most, requests=20_000)
    assert found.throughput_per_s == pytest.approx(most, rel=0.05)


def test_a_front_door_that_is_the_bottleneck_sets_the_capacity() -> None:
    slow = measured(front_us=500.0)
    setup = Setup(instances=4, policy=BatchPolicy(8))
    assert capacity_per_s(slow, setup) == pytest.approx(2000.0)
    found = foretold(slow, setup, 3000.0, requests=5_000)
    assert found.throughput_per_s == pytest.approx(2000.0, rel=0.05)


def test_a_spread_leaves_the_mean_run_as_it_was_measured() -> None:
    trembling = Measured({1: RUN_US, 8: 3000.0}, way_us=0.0, spread=2.0)
    service = trembling.service()
    noise = service.noise(200_000, np.random.default_rng(1))
    assert service.of(1) * noise.mean() == pytest.approx(RUN_US, rel=0.01)
    assert np.percentile(noise, 99) == pytest.approx(2.0, rel=0.02)
    assert trembling.mean_us(1) == RUN_US
