"""Spans without the SDK's cost on the hot path: a tuple when sampled, a flag check when not.

Finished spans lie in a bounded ring for `sits trace`, and go to an exporter thread when
an OTLP endpoint is configured (`sits_core.otlp`).
"""

import random
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

Attribute = str | int | float | bool

_TRACEPARENT = re.compile(r"^00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})$")
_SAMPLED = 0x01
_WIRE_BYTES = 25


class TraceContext(NamedTuple):
    """Where a new span belongs: its trace and its parent. Only sampled ones exist."""

    trace_id: bytes
    span_id: bytes

    def to_wire(self) -> bytes:
        """16 bytes trace id, 8 bytes span id, 1 byte flags."""
        return self.trace_id + self.span_id + b"\x01"

    @classmethod
    def from_wire(cls, data: bytes) -> "TraceContext | None":
        """None when empty, malformed or not sampled."""
        if len(data) != _WIRE_BYTES or not data[24] & _SAMPLED:
            return None
        return cls(data[:16], data[16:24])


class SpanRecord(NamedTuple):
    """One finished span. Times are Unix nanoseconds (`sits_core.clock.now_ns`)."""

    name: str
    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Attribute]
    links: tuple[TraceContext, ...] = ()
    error: str = ""


class Tracer:
    """Decides what is sampled, makes ids, keeps finished spans. Safe from any thread.

    `ratio` may be set at any time.
    """

    def __init__(
        self, service: str, ring_size: int, ratio: float, rng: random.Random | None = None
    ) -> None:
        self.service = service
        self.ratio = ratio
        self._rng = rng or random.SystemRandom()
        self._ring: deque[SpanRecord] = deque(maxlen=ring_size)
        self._lock = threading.Lock()
        self._sinks: tuple[Callable[[SpanRecord], object], ...] = ()

    def add_sink(self, sink: Callable[[SpanRecord], object]) -> None:
        """`sink` gets every finished span, must not block and must not raise."""
        self._sinks = (*self._sinks, sink)

    def incoming(self, traceparent: str | None, ratio: float | None = None) -> TraceContext | None:
        """Context of a request at the edge; None = not sampled.

        The client's decision wins; without one, `ratio` of all requests (the tracer's own
        unless given) start a trace whose parent span id is zero.
        """
        if traceparent is not None and (match := _TRACEPARENT.match(traceparent)):
            if not int(match[3], 16) & _SAMPLED:
                return None
            return TraceContext(bytes.fromhex(match[1]), bytes.fromhex(match[2]))
        share = self.ratio if ratio is None else ratio
        if share <= 0 or self._rng.random() >= share:
            return None
        return self.new_trace()

    def new_trace(self) -> TraceContext:
        return TraceContext(self._rng.randbytes(16), bytes(8))

    def new_span_id(self) -> bytes:
        return self._rng.randbytes(8)

    def record(
        self,
        name: str,
        parent: TraceContext,
        start_ns: int,
        end_ns: int,
        attributes: Mapping[str, Attribute],
        *,
        span_id: bytes | None = None,
        links: tuple[TraceContext, ...] = (),
        error: str = "",
    ) -> TraceContext:
        """Keep a finished span below `parent`; returns its context, for children."""
        own = span_id or self.new_span_id()
        span = SpanRecord(
            name, parent.trace_id, own, parent.span_id, start_ns, end_ns, attributes, links, error
        )
        with self._lock:
            self._ring.append(span)
        for sink in self._sinks:
            sink(span)
        return TraceContext(parent.trace_id, own)

    def spans(self, trace_id: bytes | None = None, limit: int = 1000) -> list[SpanRecord]:
        """Newest last; those of one trace, or the newest of all."""
        with self._lock:
            kept: Iterable[SpanRecord] = list(self._ring)
        chosen = [s for s in kept if trace_id is None or s.trace_id == trace_id]
        return chosen[-limit:]

    def __repr__(self) -> str:
        return f"<Tracer {self.service} ratio={self.ratio} kept={len(self._ring)}>"
