"""Links cost by kind, bandwidth and knowledge; messages also what starting them takes."""

import pytest

from sits_scheduling.links import (
    Knowledge,
    Link,
    LinkKind,
    switched,
    transfer_us,
)


def test_farther_kinds_cost_more() -> None:
    order = [LinkKind.SELF, LinkKind.NVLINK, LinkKind.PIX, LinkKind.PXB, LinkKind.PHB,
             LinkKind.NODE, LinkKind.SYS]  # fmt: skip
    costs = [Link(kind).cost_s_per_mb for kind in order]
    assert costs == sorted(costs)


def test_absent_unknown_and_degraded_are_three_different_costs() -> None:
    absent, unknown = (
        Link(LinkKind.SYS, 24.0, knowledge=k).cost_s_per_mb
        for k in (Knowledge.ABSENT, Knowledge.UNKNOWN)
    )
    known = Link(LinkKind.NVLINK, 240.0).cost_s_per_mb
    degraded = Link(LinkKind.NVLINK, 240.0, knowledge=Knowledge.DEGRADED).cost_s_per_mb
    assert known < degraded < unknown < absent


def test_a_pair_on_a_switch_gets_the_smaller_link_count() -> None:
    assert switched(18, 18, 20.6).gbps == pytest.approx(370.8)
    assert switched(18, 12, 20.6, full_lanes=18).gbps == pytest.approx(12 * 20.6)
    assert switched(18, 0, 20.6, full_lanes=18).knowledge is Knowledge.DEGRADED
    assert switched(0, 0, 20.6).knowledge is Knowledge.ABSENT


def test_latency_decides_small_messages_and_bandwidth_large_ones() -> None:
    near, far = Link(LinkKind.SYS, 24.0), Link(LinkKind.NETWORK, 35.0)
    assert transfer_us(near, 2048) < 10 < 17 < transfer_us(far, 2048) < 24
    assert transfer_us(far, 64 << 20) < transfer_us(near, 64 << 20)
    assert transfer_us(Link(LinkKind.SELF), 64 << 20) == 0
