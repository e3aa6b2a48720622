"""Gangs by the published weights: in one link domain, of sound cards, each to one holder (D2)."""

import random
from itertools import combinations

import pytest

from sits_core.errors import InvalidArgument, Unavailable
from sits_dispatcher.gangs import HELD_S, Gangs, Wanted
from sits_protos.v1.topology_pb2 import (
    DEVICE_HEALTH_BAD,
    DEVICE_HEALTH_GOOD,
    DEVICE_KIND_CPU,
    DEVICE_KIND_GPU,
    AffinityWeight,
    Device,
    TopologySnapshot,
)

FAST, SLOW = 1e-3 / 370, 1e-3 / 24
"""Seconds a megabyte: NVLink, and PCIe."""


def host(
    name: str, gpus: int = 4, pairs: bool = True, bad: tuple[int, ...] = ()
) -> TopologySnapshot:
    """NVLink in pairs (0 with 1, 2 with 3), or between all."""
    made = TopologySnapshot(host=name, devices=[Device(id="cpu:0", kind=DEVICE_KIND_CPU)])
    for n in range(gpus):
        health = DEVICE_HEALTH_BAD if n in bad else DEVICE_HEALTH_GOOD
        made.devices.add(id=f"{name}-{n}", kind=DEVICE_KIND_GPU, health=health)
    for a, b in combinations(range(gpus), 2):
        cost = FAST if not pairs or a // 2 == b // 2 else SLOW
        for one, other in ((a, b), (b, a)):
            weight = AffinityWeight(to=f"{name}-{other}", cost_s_per_mb=cost)
            setattr(weight, "from", f"{name}-{one}")
            made.weights.append(weight)
    return made


def choose(gangs: Gangs, wanted: Wanted, *hosts: TopologySnapshot, linked=(), now_s=0.0):
    return gangs.choose(wanted, hosts, linked, now_s)


@pytest.fixture
def gangs() -> Gangs:
    return Gangs(random.Random(1))


def test_a_gang_of_two_is_a_pair_with_nvlink_and_says_how_wide_it_is(gangs):
    found = choose(gangs, Wanted(2), host("h"))
    assert set(found.gang.devices) in ({"h-0", "h-1"}, {"h-2", "h-3"})
    assert found.gang.bottleneck_gbps == pytest.approx(370)


def test_the_alternatives_are_the_others_the_best_first(gangs):
    found = choose(gangs, Wanted(2), host("h"))
    times = [gang.collective_us for gang in found.alternatives]
    assert times == sorted(times)
    assert found.gang.collective_us <= times[0]
    assert set(found.gang.devices) not in [set(gang.devices) for gang in found.alternatives]
    assert found.alternatives[-1].bottleneck_gbps == pytest.approx(24)


def test_a_gang_stays_on_one_host_and_the_widest_host_wins(gangs):
    found = choose(gangs, Wanted(4), host("pairs"), host("all", pairs=False))
    assert found.gang.host == "all"
    assert [gang.host for gang in found.alternatives] == ["pairs"]


def test_only_the_named_host_and_devices_come_into_question(gangs):
    one, other = host("one", pairs=False), host("other", pairs=False)
    assert choose(gangs, Wanted(2, host="other"), one, other).gang.host == "other"
    among = frozenset({"one-1", "one-3"})
    assert set(choose(gangs, Wanted(2, among=among), one, other).gang.devices) == among


def test_bad_cards_are_in_no_gang(gangs):
    found = choose(gangs, Wanted(2), host("h", bad=(0,)))
    assert set(found.gang.devices) == {"h-2", "h-3"}
    with pytest.raises(Unavailable, match="no gang of 4 GPUs is free on one host: 3 come"):
        choose(gangs, Wanted(4), host("h", bad=(0,)))


def test_what_one_holds_no_other_gets(gangs):
    first = choose(gangs, Wanted(2, holder="a"), host("h")).gang
    second = choose(gangs, Wanted(2, holder="b"), host("h")).gang
    assert not set(first.devices) & set(second.devices)
    with pytest.raises(Unavailable) as none:
        choose(gangs, Wanted(2, holder="c"), host("h"))
    assert none.value.reason == "NO_GANG"


def test_who_asks_again_may_have_the_same(gangs):
    choose(gangs, Wanted(4, holder="a"), host("h"))
    assert len(choose(gangs, Wanted(4, holder="a"), host("h")).gang.devices) == 4


def test_looking_holds_nothing(gangs):
    for _ in range(3):
        choose(gangs, Wanted(4), host("h"))
    assert choose(gangs, Wanted(4, holder="a"), host("h"))


def test_a_gang_is_held_while_its_holder_is_linked_and_a_minute_before_it_is(gangs):
    whole = Wanted(4, holder="a")
    choose(gangs, whole, host("h"), now_s=0.0)
    other = Wanted(4, holder="b")
    for linked, now_s in (((), HELD_S - 1), (("a",), HELD_S + 1), (("a",), 1e6)):
        with pytest.raises(Unavailable):
            choose(gangs, other, host("h"), linked=linked, now_s=now_s)
    assert choose(gangs, other, host("h"), linked=("b",), now_s=1e6 + 1)


@pytest.mark.parametrize("size", [0, 1, 3, 16])
def test_a_size_that_is_none_is_refused(gangs, size):
    with pytest.raises(InvalidArgument, match=f"size is {size}, expected one of 2, 4, 8"):
        choose(gangs, Wanted(size), host("h"))


def test_without_a_topology_it_is_said_what_is_missing(gangs):
    with pytest.raises(Unavailable, match="is a topology service running there"):
        choose(gangs, Wanted(2, host="h"))
