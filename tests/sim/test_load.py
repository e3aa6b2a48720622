"""Load shapes: rates, shares and reproducibility of what they draw."""

import numpy as np
import pytest

from sits_sim.load import Burst, long_tail, noisy_neighbour, poisson, replay
from sits_sim.traces import NAMES, mixed, trace


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_a_burst_has_five_times_the_rate_for_three_of_fifteen_seconds() -> None:
    at_s = Burst().warp(poisson(2000, 150, rng()))
    inside = Burst().inside(at_s)
    burst_rate = inside.sum() / (10 * 3)
    quiet_rate = (~inside).sum() / (10 * 12)
    assert burst_rate / quiet_rate == pytest.approx(5, rel=0.05)


def test_bursts_leave_the_mean_rate_as_it_was() -> None:
    steady = poisson(2000, 150, rng())
    warped = Burst().warp(steady)
    assert len(warped) == len(steady)
    assert warped.max() <= 150
    assert (np.diff(warped) >= 0).all()


def test_a_long_tail_enlarges_five_percent_and_shrinks_nothing() -> None:
    factors = long_tail(100_000, rng())
    assert (factors > 1).mean() == pytest.approx(0.05, abs=0.006)
    assert factors.min() == 1.0
    assert np.median(factors[factors > 1]) == pytest.approx(np.exp(1.2), rel=0.15)


def test_only_the_noisy_neighbour_comes_in_bursts() -> None:
    stream = noisy_neighbour(np.array([500.0, 500.0]), noisy=1, duration_s=150, rng=rng())
    in_burst = Burst().inside(stream.at_s)
    shares = [in_burst[stream.tenant == tenant].mean() for tenant in (0, 1)]
    assert shares[0] == pytest.approx(3 / 15, rel=0.05)
    assert shares[1] == pytest.approx(5 * 3 / 27, rel=0.05)


@pytest.mark.parametrize("copies", [1, 16])
def test_a_replayed_trace_reaches_the_asked_rate(copies: int) -> None:
    at_s, rows = replay(trace("azure2023_conv").gaps_s, 10_000, 5.0, copies, rng())
    assert len(at_s) / 5.0 == pytest.approx(10_000, rel=0.1)
    assert (np.diff(at_s) >= 0).all()
    assert 0 <= rows.min() <= rows.max() < len(trace("azure2023_conv"))


def test_one_copy_keeps_the_bursts_of_a_trace_and_many_copies_smooth_them() -> None:
    gaps = trace("azure2023_code").gaps_s

    def variation(copies: int) -> float:
        between = np.diff(replay(gaps, 10_000, 2.0, copies, rng())[0])
        return float(between.std() / between.mean())

    assert variation(1) > 5
    assert variation(200) < 1.5


@pytest.mark.parametrize("name", NAMES)
def test_traces_are_whole(name: str) -> None:
    recorded = trace(name)
    assert (
        len(recorded) == {"azure2023_conv": 19366, "azure2023_code": 8819, "mooncake": 12031}[name]
    )
    assert (recorded.gaps_s >= 0).all()
    assert recorded.gaps_s.sum() == pytest.approx(3500, rel=0.02)


def test_mixed_traces_share_the_rate_equally_and_repeat_by_seed() -> None:
    one, same, other = (mixed(9000, 2.0, 8, rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(one.at_s, same.at_s)
    assert not np.array_equal(one.at_s[:100], other.at_s[:100])
    assert len(one) == pytest.approx(18_000, rel=0.1)
