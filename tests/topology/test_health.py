"""What happens to a card lowers or removes its weight, and for how long."""

from dataclasses import replace

import pynvml
import pytest

from sits_scheduling.links import DEGRADED_FACTOR
from sits_topology.health import (
    FATAL_S,
    FATAL_XIDS,
    FREE_READS,
    HURT_S,
    HURT_XIDS,
    Condition,
    HealthMemory,
    Sign,
)
from sits_topology.model import DeviceKind, Health, Topology
from sits_topology.nvml import NvmlSource
from sits_topology.snapshot import to_proto
from sits_topology.testing import FakeCard, FakeEvent, FakeNvLink, FakeNvml, FakeSlice

PCI = [f"00000000:0{n}:00.0" for n in range(1, 4)]
IDS = [f"GPU-{n}" for n in range(3)]
FINE = Condition(uncorrected=0)
SLOWED = FINE._replace(slowed_by=("hardware thermal slowdown",))
THERMAL, POWER_CAP, IDLE = 0x40, 0x4, 0x1


class Machine:
    """Three cards on one NVSwitch, and a clock."""

    def __init__(self, sysfs, **facts) -> None:
        links = (FakeNvLink(),) * 18
        self.nvml = FakeNvml([FakeCard(PCI[n], IDS[n], nvlinks=links, **facts) for n in range(3)])
        self.now_s = 1000.0
        self._source = NvmlSource(sysfs, self.nvml, lambda: self.now_s)
        self.read()

    def read(self, after_s: float = 5.0) -> Topology:
        self.now_s += after_s
        return self._source.read()

    def health(self, after_s: float = 5.0) -> tuple[Health, str]:
        """Of the second card; the others must be fine."""
        devices = self.read(after_s).of_kind(DeviceKind.GPU)
        assert {devices[0].health, devices[2].health} == {Health.GOOD}
        return devices[1].health, devices[1].health_reason

    def xid(self, code: int) -> None:
        self.nvml.events.append(FakeEvent(self.nvml.cards[1], code))

    def change(self, **facts) -> None:
        cards = list(self.nvml.cards)
        cards[1] = replace(cards[1], **facts)
        self.nvml.cards = cards


@pytest.fixture
def machine(one_node) -> Machine:
    return Machine(one_node)


GOOD = (Health.GOOD, "")


# Xids


@pytest.mark.parametrize("code", sorted(FATAL_XIDS))
def test_an_xid_that_asks_for_a_reset_makes_the_card_bad_for_half_an_hour(machine, code):
    machine.xid(code)
    assert machine.health() == (Health.BAD, f"Xid {code}")
    assert machine.health(FATAL_S - 10)[0] is Health.BAD
    assert machine.health(10.1) == GOOD


@pytest.mark.parametrize("code", sorted(HURT_XIDS))
def test_an_xid_after_which_the_card_works_on_degrades_it_for_five_minutes(machine, code):
    machine.xid(code)
    assert machine.health() == (Health.DEGRADED, f"Xid {code}")
    assert machine.health(HURT_S - 10)[0] is Health.DEGRADED
    assert machine.health(10.1) == GOOD


@pytest.mark.parametrize("code", [13, 31, 43, 45, 68])
def test_what_a_program_did_wrong_says_nothing_of_the_card(machine, code):
    machine.xid(code)
    assert machine.health() == GOOD


def test_another_xid_of_the_same_kind_begins_the_time_anew(machine):
    machine.xid(74)
    machine.read(HURT_S - 10)
    machine.xid(74)
    assert machine.health()[0] is Health.DEGRADED
    assert machine.health(HURT_S - 1)[0] is Health.DEGRADED
    assert machine.health(1.1) == GOOD


def test_the_worst_of_several_signs_counts(machine):
    machine.xid(74)
    machine.xid(79)
    assert machine.health() == (Health.BAD, "Xid 79")
    assert machine.health(FATAL_S) == GOOD


def test_a_double_bit_event_is_as_the_xid_of_it(machine):
    machine.nvml.events.append(FakeEvent(machine.nvml.cards[1], 0, eventType=2))
    assert machine.health() == (Health.BAD, "Xid 48")


def test_a_storm_of_events_does_not_hold_up_a_read(machine):
    machine.nvml.events = [FakeEvent(machine.nvml.cards[1], 13)] * 10_000
    machine.read()
    assert len(machine.nvml.events) > 9_000


@pytest.mark.parametrize("call", ["nvmlEventSetCreate", "nvmlDeviceRegisterEvents"])
def test_cards_that_cannot_be_watched_are_read_all_the_same(one_node, call):
    nvml = FakeNvml([FakeCard(PCI[0], IDS[0])], failures={call: pynvml.NVMLError_NotSupported()})
    (device,) = NvmlSource(one_node, nvml).read().of_kind(DeviceKind.GPU)
    assert device.health is Health.GOOD


def test_slices_share_what_happened_to_their_card(one_node):
    card = FakeCard(PCI[0], IDS[0], slices=(FakeSlice("MIG-a"), FakeSlice("MIG-b")))
    nvml = FakeNvml([card])
    source = NvmlSource(one_node, nvml)
    source.read()
    nvml.events.append(FakeEvent(card, 95))
    assert {d.health for d in source.read().of_kind(DeviceKind.MIG)} == {Health.BAD}


# Memory errors


def test_errors_of_before_say_nothing_and_new_ones_make_the_card_bad(one_node):
    machine = Machine(one_node, uncorrected=3)
    assert machine.health() == GOOD
    machine.change(uncorrected=4)
    assert machine.health() == (Health.BAD, "uncorrectable memory errors")
    assert machine.health(FATAL_S - 1)[0] is Health.BAD
    assert machine.health(1.1) == GOOD


def test_a_count_that_begins_anew_is_no_new_error(machine):
    machine.change(uncorrected=4)
    machine.read(FATAL_S + 1)
    machine.read(FATAL_S + 1)
    machine.change(uncorrected=0)
    assert machine.health() == GOOD


def test_rows_that_wait_for_a_reset_degrade_until_then(machine):
    machine.change(remapped_rows=(0, 1, 1, 0))
    assert machine.health(10_000)[0] is Health.DEGRADED
    machine.change(remapped_rows=(0, 1, 0, 0))
    assert machine.health() == GOOD


def test_rows_that_cannot_be_remapped_make_the_card_bad_for_good(machine):
    machine.change(remapped_rows=(0, 1, 1, 1))
    assert machine.health(100_000) == (Health.BAD, "remapping of memory rows failed")


# Throttling


def test_throttling_counts_once_it_lasts_and_until_it_was_gone_for_longer(machine):
    machine.change(clock_reasons=THERMAL)
    assert machine.health() == GOOD
    assert machine.health() == (Health.DEGRADED, "throttled: hardware thermal slowdown")
    machine.change(clock_reasons=IDLE)
    for _ in range(FREE_READS - 1):
        assert machine.health()[0] is Health.DEGRADED
    assert machine.health() == GOOD


def test_clocks_that_go_up_and_down_do_not_make_the_weight_flap():
    memory = HealthMemory()
    seen = [list(memory.signs("a", condition, (), float(n)))
            for n, condition in enumerate([SLOWED, FINE] * 20)]  # fmt: skip
    assert not any(seen)
    memory = HealthMemory()
    seen = [bool(list(memory.signs("a", condition, (), float(n))))
            for n, condition in enumerate([SLOWED, SLOWED, FINE] * 20)]  # fmt: skip
    assert seen == [False] + [True] * 59


@pytest.mark.parametrize("reasons", [IDLE, POWER_CAP, 0x2, 0x10, 0x100, 0])
def test_clocks_as_they_were_set_and_the_power_cap_are_no_reason(machine, reasons):
    machine.change(clock_reasons=reasons)
    machine.read()
    assert machine.health() == GOOD


def test_an_older_driver_is_asked_by_the_older_name(one_node):
    machine = Machine(one_node)
    call = "nvmlDeviceGetCurrentClocksEventReasons"
    machine.nvml.failures[call] = pynvml.NVMLError_FunctionNotFound()
    machine.change(clock_reasons=THERMAL)
    machine.read()
    assert machine.health()[0] is Health.DEGRADED


# Weights


def costs(topology: Topology) -> dict[tuple[str, str], float]:
    snapshot = to_proto(topology, host="h", node_name="n")
    return {(getattr(w, "from"), w.to): w.cost_s_per_mb for w in snapshot.weights}


def test_what_leads_to_a_degraded_card_costs_more(machine):
    before = costs(machine.read())
    machine.xid(74)
    after = costs(machine.read())
    for pair, cost in after.items():
        assert cost == pytest.approx(before[pair] * (DEGRADED_FACTOR if IDS[1] in pair else 1))


def test_a_bad_card_has_no_weights_and_the_others_keep_theirs(machine):
    before = costs(machine.read())
    machine.xid(79)
    after = costs(machine.read())
    assert after == {pair: cost for pair, cost in before.items() if IDS[1] not in pair}
    assert after


def test_links_that_are_degraded_already_do_not_count_twice(machine):
    before = costs(machine.read())
    machine.change(nvlinks=(FakeNvLink(),) * 9 + (FakeNvLink(up=False),) * 9)
    after = costs(machine.read())
    pair = (IDS[0], IDS[1])
    assert after[pair] == pytest.approx(before[pair] * 2 * DEGRADED_FACTOR)


def test_a_sign_is_a_value():
    assert Sign(Health.BAD, "Xid 79") == Sign(Health.BAD, "Xid 79")
