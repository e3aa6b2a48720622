"""Joins the spans of one request from all services into a waterfall. Pure, no I/O."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from sits_protos.v1.control_pb2 import GetSpansResponse

ROOT_NAME = "preprocess.request"


@dataclass(frozen=True, slots=True)
class SpanLink:
    trace_id: bytes
    span_id: bytes


@dataclass(frozen=True, slots=True)
class Span:
    """One finished span as a service reported it; times are Unix nanoseconds."""

    service: str
    name: str
    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    start_ns: int
    end_ns: int
    attributes: Mapping[str, str] = field(default_factory=dict)
    links: tuple[SpanLink, ...] = ()
    error: str = ""


class RowKind(Enum):
    """LINKED: belongs to another trace that this request made use of. TRAVEL: no span at
    all, but the time between the end of one service's stage and the start of another's."""

    STAGE = "stage"
    LINKED = "linked"
    TRAVEL = "travel"


@dataclass(frozen=True, slots=True)
class Row:
    """One line. `start_ns` counts from the start of the request, and may be negative."""

    service: str
    name: str
    start_ns: int
    duration_ns: int
    kind: RowKind = RowKind.STAGE
    depth: int = 0
    attributes: Mapping[str, str] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True)
class Waterfall:
    """`stage_ns` and `travel_ns`: what of `total_ns` is spent in stages, and between services."""

    trace_id: bytes
    rows: tuple[Row, ...]
    total_ns: int
    stage_ns: int
    travel_ns: int

    @property
    def rest_ns(self) -> int:
        """What nothing accounts for: time inside services but outside of their stages."""
        return self.total_ns - self.stage_ns - self.travel_ns

    @property
    def services(self) -> tuple[str, ...]:
        """In order of appearance."""
        return tuple(dict.fromkeys(row.service for row in self.rows))


class Gap(NamedTuple):
    """Time in which no stage ran, between a stage of `left` and one of `entered`."""

    left: str
    entered: str
    start_ns: int
    end_ns: int


def reported(answer: GetSpansResponse) -> list[Span]:
    """The spans that a service answered with."""
    return [
        Span(
            answer.service, span.name, span.trace_id, span.span_id, span.parent_id,
            span.start_unix_ns, span.end_unix_ns, dict(span.attributes),
            tuple(SpanLink(link.trace_id, link.span_id) for link in span.links), span.error,
        )
        for span in answer.spans
    ]  # fmt: skip


def linked_traces(spans: Iterable[Span], trace_id: bytes) -> list[bytes]:
    """Other traces that spans of this one point at, each once."""
    ids = (link.trace_id for span in spans for link in span.links)
    return [other for other in dict.fromkeys(ids) if other != trace_id]


def newest(spans: Iterable[Span]) -> Span | None:
    """The request that ended last."""
    roots = [span for span in spans if span.name == ROOT_NAME]
    return max(roots, key=lambda span: span.end_ns, default=None)


def build(trace_id: bytes, spans: Sequence[Span]) -> Waterfall:
    """`spans` holds those of the trace and any of linked traces, repeated ones allowed."""
    known = {(span.trace_id, span.span_id): span for span in spans}
    own = [span for span in known.values() if span.trace_id == trace_id]
    if not own:
        return Waterfall(trace_id, (), 0, 0, 0)
    root = _root(own)
    gaps = find_gaps(root, [span for span in own if span is not root])
    travel = [gap for gap in gaps if gap.left != gap.entered]
    links = dict.fromkeys(link for span in own for link in span.links)
    targets = [known.get((link.trace_id, link.span_id)) for link in links]
    linked = [span for span in targets if span is not None and span.trace_id != trace_id]
    rows = [
        *_with_travel(_tree(own, root), travel, root),
        *(_row(span, root, RowKind.LINKED) for span in linked),
    ]
    total_ns = root.end_ns - root.start_ns
    empty_ns = sum(gap.end_ns - gap.start_ns for gap in gaps)
    travel_ns = sum(gap.end_ns - gap.start_ns for gap in travel)
    return Waterfall(trace_id, tuple(rows), total_ns, total_ns - empty_ns, travel_ns)


def find_gaps(root: Span, stages: Iterable[Span]) -> list[Gap]:
    """The parts of the request in which no stage ran, in order."""
    gaps = []
    reached_ns, service = root.start_ns, root.service
    for stage in sorted(stages, key=lambda span: span.start_ns):
        start_ns = min(stage.start_ns, root.end_ns)
        if start_ns > reached_ns:
            gaps.append(Gap(service, stage.service, reached_ns, start_ns))
        if stage.end_ns >= reached_ns:
            reached_ns, service = stage.end_ns, stage.service
    if reached_ns < root.end_ns:
        gaps.append(Gap(service, root.service, reached_ns, root.end_ns))
    return gaps


def _row(span: Span, root: Span, kind: RowKind = RowKind.STAGE, depth: int = 0) -> Row:
    start_ns, duration_ns = span.start_ns - root.start_ns, span.end_ns - span.start_ns
    return Row(span.service, span.name, start_ns, duration_ns, kind, depth,
               span.attributes, span.error)  # fmt: skip


def _with_travel(rows: Iterable[Row], travel: Sequence[Gap], root: Span) -> Iterator[Row]:
    """Each journey before the first stage that starts at its end."""
    waiting = deque(
        Row(gap.left, f"→ {gap.entered}", gap.start_ns - root.start_ns,
            gap.end_ns - gap.start_ns, RowKind.TRAVEL, 1)
        for gap in travel
    )  # fmt: skip
    for row in rows:
        while waiting and waiting[0].start_ns + waiting[0].duration_ns <= row.start_ns:
            yield waiting.popleft()
        yield row
    yield from waiting


def _root(spans: Sequence[Span]) -> Span:
    """The whole request; without one (it left the ring first) whatever started earliest."""
    ids = {span.span_id for span in spans}
    tops = [span for span in spans if span.parent_id not in ids] or list(spans)
    return min(tops, key=lambda span: (span.name != ROOT_NAME, span.start_ns))


def _tree(spans: Sequence[Span], root: Span) -> list[Row]:
    """Parents before children, siblings by start; a span whose parent is lost stands at the top."""
    ids = {span.span_id for span in spans}
    children: dict[bytes, list[Span]] = {}
    tops = []
    for span in sorted(spans, key=lambda span: (span is not root, span.start_ns)):
        if span.parent_id in ids and span.parent_id != span.span_id:
            children.setdefault(span.parent_id, []).append(span)
        else:
            tops.append(span)
    rows: list[Row] = []
    waiting = [(span, 0) for span in reversed(tops)]
    while waiting:
        span, depth = waiting.pop()
        rows.append(_row(span, root, depth=depth))
        below = children.pop(span.span_id, [])
        waiting.extend((child, depth + 1) for child in reversed(below))
    return rows
