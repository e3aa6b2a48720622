"""Spans of one request become a waterfall."""

from rich.console import Console

from sits_cli.waterfall_view import bar, draw
from sits_core.waterfall import (
    Row,
    RowKind,
    Span,
    SpanLink,
    Waterfall,
    build,
    find_gaps,
    linked_traces,
    newest,
)

TRACE, OTHER = b"t" * 16, b"o" * 16
ROOT = b"rootspan"


def span(name: str, start: int, end: int, **more: object) -> Span:
    service = name.partition(".")[0]
    fields: dict[str, object] = {
        "trace_id": TRACE, "span_id": name.encode()[:8].ljust(8), "parent_id": ROOT,
    }  # fmt: skip
    return Span(service, name, start_ns=start, end_ns=end, **(fields | more))  # type: ignore[arg-type]


def request() -> list[Span]:
    """10 ms, of which 9.5 are in stages; the executor's clock reports out of order."""
    link = (SpanLink(OTHER, b"publish1"),)
    return [
        span("executor.infer", 4_000_000, 9_500_000, span_id=b"infer001"),
        span("dispatcher.place", 2_000_000, 4_000_000, links=link),
        span("preprocess.request", 0, 10_000_000, span_id=ROOT, parent_id=b"client01"),
        span("preprocess.queue", 0, 2_000_000, span_id=b"queue001"),
        span("topology.publish", -3_000_000_000, -2_999_000_000, trace_id=OTHER,
             span_id=b"publish1", parent_id=bytes(8)),
    ]  # fmt: skip


def stages(waterfall: Waterfall) -> list[Row]:
    return [row for row in waterfall.rows if row.kind is not RowKind.TRAVEL]


def drawn(spans: list[Span], width: int = 200) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(draw(build(TRACE, spans)))
        return console.export_text()


def test_the_request_leads_and_its_stages_follow_in_time() -> None:
    rows = stages(build(TRACE, request()))
    assert [row.name for row in rows] == [
        "preprocess.request", "preprocess.queue", "dispatcher.place", "executor.infer",
        "topology.publish",
    ]  # fmt: skip
    assert [row.depth for row in rows] == [0, 1, 1, 1, 0]


def test_a_linked_span_of_another_trace_is_shown_as_linked() -> None:
    waterfall = build(TRACE, request())
    assert [row.service for row in waterfall.rows if row.kind is RowKind.LINKED] == ["topology"]
    assert waterfall.services == ("preprocess", "dispatcher", "executor", "topology")


def test_other_spans_of_a_linked_trace_are_left_out() -> None:
    stranger = span("topology.publish", 0, 1, trace_id=OTHER, span_id=b"publish2")
    assert len(stages(build(TRACE, [*request(), stranger]))) == len(request())


def test_linked_traces_are_named_once() -> None:
    spans = request()
    assert linked_traces([*spans, *spans], TRACE) == [OTHER]


def test_the_total_is_stages_and_travel_and_the_rest() -> None:
    waterfall = build(TRACE, request())
    assert waterfall.total_ns == 10_000_000
    assert waterfall.stage_ns == 9_500_000
    assert waterfall.travel_ns == 500_000
    assert waterfall.rest_ns == 0


def test_time_between_stages_of_one_service_is_not_travel() -> None:
    late = span("executor.output", 9_600_000, 9_800_000, span_id=b"output01")
    waterfall = build(TRACE, [*request(), late])
    assert waterfall.travel_ns == 200_000
    assert waterfall.rest_ns == 100_000


def test_travel_stands_where_it_happens_and_says_where_to() -> None:
    early = [s for s in request() if s.name != "dispatcher.place"]
    rows = [(row.name, row.start_ns, row.duration_ns) for row in build(TRACE, early).rows]
    assert rows[1:] == [
        ("preprocess.queue", 0, 2_000_000),
        ("→ executor", 2_000_000, 2_000_000),
        ("executor.infer", 4_000_000, 5_500_000),
        ("→ preprocess", 9_500_000, 500_000),
    ]


def test_overlapping_stages_count_once() -> None:
    root = span("preprocess.request", 0, 25, span_id=ROOT)
    parts = [span("executor.x", start, end) for start, end in ((0, 6), (4, 8), (5, 6), (20, 30))]
    assert [(gap.start_ns, gap.end_ns) for gap in find_gaps(root, parts)] == [(8, 20)]


def test_stages_outside_the_request_count_only_where_they_overlap_it() -> None:
    root = span("preprocess.request", 0, 10, span_id=ROOT)
    parts = [span("executor.x", start, end) for start, end in ((-5, 2), (8, 99), (70, 80))]
    assert [(gap.start_ns, gap.end_ns) for gap in find_gaps(root, parts)] == [(2, 8)]
    gaps = find_gaps(root, [span("executor.x", -9, -5), span("executor.y", 50, 60)])
    assert [(gap.start_ns, gap.end_ns) for gap in gaps] == [(0, 10)]


def test_a_span_reported_twice_is_drawn_once() -> None:
    assert len(stages(build(TRACE, request() * 2))) == len(request())


def test_children_stand_below_their_parent() -> None:
    child = span("executor.copy", 4_100_000, 4_200_000, parent_id=b"infer001", span_id=b"copy0001")
    rows = build(TRACE, [child, *request()]).rows
    position = [row.name for row in rows].index("executor.copy")
    assert rows[position - 1].name == "executor.infer"
    assert rows[position].depth == 2


def test_without_its_root_the_earliest_stage_leads() -> None:
    spans = [s for s in request() if s.name != "preprocess.request"]
    assert build(TRACE, spans).rows[0].name == "preprocess.queue"


def test_a_span_that_is_its_own_parent_does_no_harm() -> None:
    loop = span("executor.odd", 1, 2, span_id=b"oddspan1", parent_id=b"oddspan1")
    assert "executor.odd" in [row.name for row in build(TRACE, [*request(), loop]).rows]


def test_two_spans_that_claim_each_other_as_parent_do_not_hang() -> None:
    first = span("executor.a", 1, 2, span_id=b"aaaaaaaa", parent_id=b"bbbbbbbb")
    second = span("executor.b", 1, 2, span_id=b"bbbbbbbb", parent_id=b"aaaaaaaa")
    assert build(TRACE, [*request(), first, second]).rows[0].name == "preprocess.request"


def test_no_spans_make_an_empty_waterfall() -> None:
    assert build(TRACE, []).rows == ()


def test_the_newest_request_is_the_one_that_ended_last() -> None:
    late = span("preprocess.request", 5, 99_000_000, span_id=b"laterone", trace_id=OTHER)
    found = newest([late, *request()])
    assert found is not None
    assert found.trace_id == OTHER


def test_bars_start_and_end_in_proportion() -> None:
    assert bar(0.0, 1.0, 10) == "█" * 10
    assert bar(0.5, 0.25, 8) == "    ██  "
    assert bar(0.0, 0.5 / 8, 8) == "▌       "


def test_a_bar_is_never_invisible_nor_past_the_edge() -> None:
    assert bar(0.3, 0.0, 10).strip() == "▏"
    assert len(bar(0.999, 1.0, 10)) == 10
    assert bar(1.0, 0.5, 10).rstrip() == " " * 9 + "█"


def test_every_stage_is_drawn_on_one_line_with_its_time() -> None:
    text = drawn(request())
    infer = next(line for line in text.splitlines() if "infer" in line)
    assert infer.startswith("executor")
    assert "4.00 ms" in infer
    assert "5.50 ms" in infer
    assert "95.0% of the total in stages, 5.0% between services, 0.0% unaccounted for." in text


def test_what_ended_before_the_request_says_how_long_before() -> None:
    line = next(row for row in drawn(request()).splitlines() if "publish" in row)
    assert "(linked)" in line
    assert "3.00 s before" in line


def test_bars_of_all_lines_share_one_axis() -> None:
    lines = {line.split()[1]: line for line in drawn(request()).splitlines() if "█" in line}
    start = lines["request"].index("█")
    assert lines["queue"].index("█") == start
    assert lines["place"].index("█") == start + 8
    assert lines["infer"].index("█") == start + 16


def test_markup_in_attributes_is_shown_as_it_is() -> None:
    odd = span("executor.odd", 1, 2, attributes={"strategy": "[red]x[/nope]"}, span_id=b"oddspan1")
    assert "strategy=[red]x[/nope]" in drawn([*request(), odd])


def test_errors_are_shown_in_place_of_attributes() -> None:
    failed = span("executor.bad", 1, 2, error="INTERNAL: out of memory", span_id=b"oddspan1")
    assert "INTERNAL: out of memory" in drawn([*request(), failed])
