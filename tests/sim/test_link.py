"""Transfers that share a link."""

import pytest

from sits_sim.clock import Clock
from sits_sim.link import SharedLink


def finish_times(sends: list[tuple[int, float]]) -> list[int]:
    """When each of the transfers (start in ns, bytes) over one byte a nanosecond is done."""
    clock = Clock()
    link = SharedLink(clock, 1.0)
    times = [-1] * len(sends)

    def done(number: int) -> None:
        assert times[number] == -1
        times[number] = clock.now_ns

    for number, (at_ns, size) in enumerate(sends):
        clock.after(at_ns, lambda n=number, s=size: link.send(s, lambda: done(n)))
    clock.run()
    assert len(link) == 0
    return times


def test_alone_a_transfer_has_the_whole_link() -> None:
    assert finish_times([(10, 1000)]) == [1010]


def test_two_transfers_have_half_each() -> None:
    assert finish_times([(0, 1000), (0, 1000)]) == [2000, 2000]


def test_a_short_transfer_delays_a_long_one_by_its_own_length() -> None:
    assert finish_times([(0, 1000), (100, 200)]) == [1200, 500]


def test_a_link_carries_no_more_than_it_can() -> None:
    sends = [(100 * n, 137.0 * (1 + n % 7)) for n in range(50)]
    last = max(finish_times(sends))
    assert last >= sum(size for _, size in sends) - 1
    assert last == pytest.approx(sum(size for _, size in sends), rel=0.05)
