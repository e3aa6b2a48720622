"""Who is traced, how a context travels, and what the ring keeps."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits_core.tracing import Make, NewId, SpanRecord, TraceContext, Tracer, span_below

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ASKED, REFUSED = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"


def tracer(ratio: float, ring_size: int = 16) -> Tracer:
    return Tracer("test", ring_size, ratio, random.Random(1))


@given(st.binary(min_size=16, max_size=16), st.binary(min_size=8, max_size=8))
def test_a_context_survives_the_wire(trace_id: bytes, span_id: bytes) -> None:
    context = TraceContext(trace_id, span_id)
    assert TraceContext.from_wire(context.to_wire()) == context


@given(st.binary(max_size=40).filter(lambda data: len(data) != 25))
def test_bytes_of_another_length_are_no_context(data: bytes) -> None:
    assert TraceContext.from_wire(data) is None


def test_a_context_without_the_sampled_flag_is_none() -> None:
    assert TraceContext.from_wire(bytes(24) + b"\x02") is None


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_the_callers_decision_is_honoured_whatever_the_ratio(ratio: float) -> None:
    expected = TraceContext(bytes.fromhex(TRACE), bytes.fromhex(SPAN))
    assert tracer(ratio).incoming(ASKED) == expected
    assert tracer(ratio).incoming(REFUSED) is None


@pytest.mark.parametrize(
    "malformed",
    [
        "",
        "garbage",
        ASKED + "\n",
        ASKED + "-more",
        ASKED[:-1],
        "ff" + ASKED[2:],
        ASKED.upper(),
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-0g",
        f"01-{TRACE}-{SPAN}-01more",
        "00-" + "a" * 100_000,
    ],
)
def test_a_malformed_traceparent_counts_as_absent(malformed: str) -> None:
    assert tracer(0.0).incoming(malformed) is None
    started = tracer(1.0).incoming(malformed)
    assert started is not None
    assert started.span_id == bytes(8)
    assert started.trace_id != bytes.fromhex(TRACE)


@pytest.mark.parametrize("later", [f"01-{TRACE}-{SPAN}-01", f"01-{TRACE}-{SPAN}-01-more-fields"])
def test_a_later_version_of_traceparent_is_understood(later: str) -> None:
    context = tracer(0.0).incoming(later)
    assert context is not None
    assert context.trace_id.hex() == TRACE


def test_about_the_ratio_of_requests_is_traced() -> None:
    chosen = tracer(0.25)
    traced = sum(chosen.incoming(None) is not None for _ in range(4000))
    assert 900 < traced < 1100


def test_a_ratio_given_for_one_request_wins() -> None:
    assert tracer(0.0).incoming(None, ratio=1.0) is not None
    assert tracer(1.0).incoming(None, ratio=0.0) is None


def test_the_ratio_may_change_while_running() -> None:
    changed = tracer(0.0)
    changed.ratio = 1.0
    assert changed.incoming(None) is not None


def test_a_disabled_tracer_samples_nothing() -> None:
    off = tracer(1.0)
    off.enabled = False
    assert off.incoming(ASKED) is None
    assert off.incoming(None) is None


def test_without_a_say_of_the_caller_the_ratio_decides_and_its_trace_id_stays() -> None:
    own = tracer(1.0)
    own.caller_decides = False
    context = own.incoming(REFUSED)
    assert context is not None
    assert context.trace_id.hex() == TRACE


def test_the_ring_keeps_the_newest_spans() -> None:
    kept = tracer(1.0, ring_size=3)
    parent = kept.new_trace()
    for number in range(5):
        kept.record(f"span {number}", parent, number, number + 1, {})
    assert [span.name for span in kept.spans()] == ["span 2", "span 3", "span 4"]
    assert [span.name for span in kept.spans(limit=1)] == ["span 4"]


def test_a_ring_of_none_still_feeds_the_sinks() -> None:
    seen: list[SpanRecord] = []
    none_kept = tracer(1.0, ring_size=0)
    none_kept.add_sink(seen.append)
    none_kept.record("span", none_kept.new_trace(), 1, 2, {})
    assert none_kept.spans() == []
    assert [span.name for span in seen] == ["span"]


def test_spans_of_one_trace_join_by_parent() -> None:
    joined = tracer(1.0)
    first, other = joined.new_trace(), joined.new_trace()
    root = joined.record("root", first, 1, 9, {})
    joined.record("noise", other, 1, 2, {})
    joined.record("child", root, 2, 3, {"rows": 4}, links=(other,), error="boom")
    spans = joined.spans(first.trace_id)
    assert [span.name for span in spans] == ["root", "child"]
    assert spans[1].parent_id == spans[0].span_id
    assert (spans[1].links, spans[1].error) == ((other,), "boom")


def later(parent: TraceContext, count: int, made: list[int]) -> Make:
    """Makes `count` spans, and notes when."""

    def make(new_id: NewId) -> list[SpanRecord]:
        made.append(count)
        return [span_below(parent, new_id(), f"later {n}", n, n + 1, {}) for n in range(count)]

    return make


def test_spans_for_later_are_made_when_somebody_looks_and_are_the_same_each_time() -> None:
    own, made = tracer(1.0), []
    parent = own.new_trace()
    own.record("before", parent, 1, 2, {})
    own.record_later(2, later(parent, 2, made))
    own.record("behind", parent, 1, 2, {})
    assert made == []
    names = ["before", "later 0", "later 1", "behind"]
    first = own.spans(parent.trace_id)
    assert [span.name for span in first] == names
    assert own.spans() == first
    assert made == [2, 2]
    assert len({span.span_id for span in first}) == 4


def test_two_who_look_at_the_same_moment_see_the_same_ids() -> None:
    own, made = tracer(1.0, ring_size=10_000), []
    own.record_later(5000, later(own.new_trace(), 5000, made))
    with ThreadPoolExecutor(4) as pool:
        seen = list(pool.map(lambda _: [s.span_id for s in own.spans(limit=9999)], range(4)))
    assert all(ids == seen[0] for ids in seen)


def test_the_ring_counts_spans_and_not_what_they_came_in() -> None:
    own, made = tracer(1.0, ring_size=5), []
    parent = own.new_trace()
    for _ in range(3):
        own.record_later(2, later(parent, 2, made))
    assert len(own.spans()) == 4
    own.record_later(6, later(parent, 6, made))
    assert own.spans() == []
    assert repr(own) == "<Tracer test ratio=1.0 kept=0>"
