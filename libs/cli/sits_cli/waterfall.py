"""Joins the spans of one request from all services into a waterfall. Pure, no I/O."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True)
class Row:
    """One line. `start_ns` counts from the start of the request, and may be negative.

    A linked span belongs to another trace that this request made use of.
    """

    span: Span
    depth: int
    start_ns: int
    linked: bool = False

    @property
    def duration_ns(self) -> int:
        return self.span.end_ns - self.span.start_ns


@dataclass(frozen=True, slots=True)
class Waterfall:
    """`covered_ns`: how much of `total_ns` some stage below the root accounts for."""

    trace_id: bytes
    rows: tuple[Row, ...]
    total_ns: int
    covered_ns: int

    @property
    def coverage(self) -> float:
        """0.0 to 1.0."""
        return self.covered_ns / self.total_ns if self.total_ns else 0.0

    @property
    def services(self) -> tuple[str, ...]:
        """In order of appearance."""
        return tuple(dict.fromkeys(row.span.service for row in self.rows))


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
        return Waterfall(trace_id, (), 0, 0)
    root = _root(own)
    links = dict.fromkeys(link for span in own for link in span.links)
    targets = [known.get((link.trace_id, link.span_id)) for link in links]
    linked = [span for span in targets if span is not None and span.trace_id != trace_id]
    rows = [
        *_tree(own, root),
        *(Row(span, 0, span.start_ns - root.start_ns, linked=True) for span in linked),
    ]
    stages = [(span.start_ns, span.end_ns) for span in own if span is not root]
    covered_ns = union_ns(stages, root.start_ns, root.end_ns)
    return Waterfall(trace_id, tuple(rows), root.end_ns - root.start_ns, covered_ns)


def union_ns(intervals: Iterable[tuple[int, int]], low: int, high: int) -> int:
    """Length of what the intervals cover between `low` and `high`, overlaps counted once."""
    covered, reached = 0, low
    for start, end in sorted(intervals):
        start, end = max(start, reached), min(end, high)
        if end > start:
            covered += end - start
            reached = end
    return covered


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
        rows.append(Row(span, depth, span.start_ns - root.start_ns))
        below = children.pop(span.span_id, [])
        waiting.extend((child, depth + 1) for child in reversed(below))
    return rows
