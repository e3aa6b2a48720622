"""Send rates, link quotas, watermarks and producers' policies."""

import random

import pytest

from sits_scheduling.communication_quota import LinkQuota
from sits_scheduling.jitter import (
    FLOOR,
    WINDOW,
    JitterControl,
    Mode,
    Pacer,
    peak_per_s,
    rate_at,
)
from sits_scheduling.producers import POLICIES, AdaptiveQuota, FixedSlices
from sits_scheduling.watermarks import Buffer, Gauge, Precision, Watermarks, watermarks

MS = 1_000_000
S = 1_000 * MS
MB = 1_000_000


def control(stdev_ms: float, made: JitterControl | None = None) -> JitterControl:
    made, rng = made or JitterControl(), random.Random(1)
    trips = [rng.gauss(0, 1) for _ in range(WINDOW)]
    mean = sum(trips) / WINDOW
    scale = (sum((t - mean) ** 2 for t in trips) / (WINDOW - 1)) ** 0.5
    for trip in trips:
        made.observe(int((200 + stdev_ms * (trip - mean) / scale) * MS))
    return made


@pytest.mark.parametrize(
    ("stdev_ms", "mode", "rate", "buffers"),
    [
        (5, Mode.OFF, 1.0, 1),
        (15, Mode.PACED, 1.0, 1),
        (32.5, Mode.PACED, 0.65, 1),
        (45, Mode.PACED, FLOOR, 1),
        (60, Mode.BUFFERED, FLOOR, 2),
    ],
)
def test_the_deviation_of_round_trips_sets_the_send_rate(
    stdev_ms: float, mode: Mode, rate: float, buffers: int
) -> None:
    state = control(stdev_ms).state()
    assert state.stdev_ms == pytest.approx(stdev_ms, rel=1e-3)
    assert (state.mode, state.buffers, state.reschedule) == (mode, buffers, buffers == 2)
    assert state.rate == pytest.approx(rate, rel=1e-2)


def test_the_rate_falls_on_a_line_between_25_and_40_ms() -> None:
    assert [rate_at(ms) for ms in (0, 25, 40, 99)] == pytest.approx([1.0, 1.0, FLOOR, FLOOR])
    assert rate_at(32.5) == pytest.approx((1 + FLOOR) / 2)


def test_modes_do_not_flap_at_their_limits() -> None:
    made = control(11)
    assert control(9, made).state().mode is Mode.PACED
    assert control(6, made).state().mode is Mode.OFF
    assert control(9, made).state().mode is Mode.OFF


def test_a_few_round_trips_say_nothing() -> None:
    made = JitterControl()
    for trip in (1, 900, 1, 900):
        made.observe(trip * MS)
    assert made.state().mode is Mode.OFF


def test_the_floor_still_carries_what_executors_drain() -> None:
    assert peak_per_s(120.0) * FLOOR == pytest.approx(120.0)


def test_a_pacer_spaces_messages_evenly() -> None:
    pacer = Pacer()
    assert [pacer.wait_ns(0, 1000.0) for _ in range(4)] == [0, MS, 2 * MS, 3 * MS]
    assert pacer.wait_ns(10 * MS, 1000.0) == 0


def quota(requests_part: float = 0.0, at: int = S) -> LinkQuota:
    """A link of 1 GB/s on which requests used a part over the last quarter of a second."""
    made = LinkQuota(bytes_per_s=1e9)
    for step in range(250):
        made.request(int(requests_part * MB), at - (250 - step) * MS)
    return made


def sent_in(made: LinkQuota, start_ns: int, lasts_ns: int) -> float:
    """Part of the link that collectives get while requests go on."""
    free_ns, sent, piece = start_ns, 0, MB // 10
    for now in range(start_ns, start_ns + lasts_ns, MS):
        made.request(int(0.35 * MB), now)
        while free_ns < now + MS:
            free_ns += made.wait_ns(piece, free_ns) + MS // 10  # the piece is on the link
            sent += piece
    return sent / 1e9 / (lasts_ns / S)


def test_collectives_are_held_to_their_share_while_requests_use_the_link() -> None:
    assert quota(0.35).part(S) == pytest.approx(0.4)
    assert sent_in(quota(0.35), S, S) == pytest.approx(0.4, rel=0.05)


def test_what_requests_do_not_need_is_lent_to_collectives() -> None:
    assert quota(0.1).part(S) == pytest.approx(0.8, abs=0.03)


def test_an_idle_link_belongs_to_collectives() -> None:
    made = quota(0.35)
    assert made.part(S + 50 * MS) == 1.0
    assert LinkQuota(1e9).wait_ns(MB, 0) == 0


def test_pieces_wait_their_turn() -> None:
    made = LinkQuota(bytes_per_s=1e9)
    assert [made.wait_ns(MB, S) for _ in range(3)] == [0, MS, 2 * MS]


def test_watermarks_depend_on_precision_and_level() -> None:
    highs = [watermarks(p, Buffer.QUEUE).high for p in Precision]
    assert highs == [128, 109, 96]
    assert [watermarks(Precision.FP32, b).high for b in Buffer] == [128, 64, 32]
    assert watermarks(Precision.BF16, Buffer.DEVICE) == Watermarks(24, 12)


def test_filling_stops_at_the_high_mark_and_goes_on_below_the_low_one() -> None:
    gauge = Gauge(Watermarks(10, 5))
    open_ = [gauge.change(n) for n in (9, 1, -1, -3, -1, 3)]
    assert open_ == [True, False, False, False, True, True]
    assert gauge.level == 0.8


def test_fixed_slices_take_turns() -> None:
    policy = FixedSlices(["a", "b"], slice_ns=MS, burst=4)
    assert [policy.quota("a", n * MS) for n in range(4)] == [4, 0, 4, 0]
    assert [policy.quota("b", n * MS) for n in range(4)] == [0, 4, 0, 4]
    assert policy.quota("stranger", 0) == 0


def test_adaptive_quotas_shrink_fast_and_grow_slowly() -> None:
    policy = AdaptiveQuota(Watermarks(100, 50), producers=5)
    assert policy.quota("a", 0) == 20
    policy.level(100)
    assert policy.quota("a", 0) == 10
    for _ in range(3):
        policy.level(10)
    assert policy.quota("a", 0) == 13
    policy.level(70)
    assert policy.quota("a", 0) == 13


@pytest.mark.parametrize("drain", [3, 20, 60])
def test_adaptive_quotas_settle_at_what_is_drained(drain: int) -> None:
    policy = POLICIES["adaptive_quota"](["a", "b"], Watermarks(100, 50))
    held, puts = 0, []
    for _ in range(2000):
        put = min(sum(policy.quota(p, 0) for p in ("a", "b")), 200 - held)
        held = max(0, held + put - drain)
        puts.append(put)
        policy.level(held)
        assert held <= 200
    settled = sum(puts[500:]) / 1500
    assert settled == pytest.approx(drain, rel=0.1)


def test_producer_policies_go_by_name() -> None:
    marks = Watermarks(100, 50)
    assert [POLICIES[n](["a"], marks).name for n in sorted(POLICIES)] == sorted(POLICIES)
