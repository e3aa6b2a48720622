"""Spans without the SDK's cost on the hot path: a tuple when sampled, a flag check when not.

Finished spans lie in a bounded ring for `sits trace`, and go to an exporter thread when
an OTLP endpoint is configured (`sits_core.otlp`).
"""

import contextlib
import random
import re
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

Attribute = str | int | float | bool

# W3C Trace Context. All-zero ids and version ff are invalid; only later versions add fields.
_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)
_TRACEPARENT_LENGTH = 55
_SAMPLED_DIGITS = frozenset("13579bdf")  # last digit of the flags, lowest bit set
_SAMPLED = 0x01
_WIRE_BYTES = 25
_NO_PARENT = bytes(8)


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

    @classmethod
    def from_traceparent(cls, text: str) -> "TraceContext":
        """Of a well-formed W3C `traceparent`, whatever its sampled flag says."""
        return cls(bytes.fromhex(text[3:35]), bytes.fromhex(text[36:52]))


def is_traceparent(text: str) -> bool:
    """Whether `text` is well-formed; by the standard anything else counts as absent."""
    if _TRACEPARENT.match(text) is None:
        return False
    rest = text[_TRACEPARENT_LENGTH:]
    return not rest or (rest[0] == "-" and not text.startswith("00"))


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

    `ratio` is the share of requests traced when the caller does not decide; with
    `caller_decides` off it holds for all of them; `enabled` off samples nothing. All
    three may be set while running.
    """

    def __init__(
        self, service: str, ring_size: int, ratio: float, rng: random.Random | None = None
    ) -> None:
        self.service = service
        self.ratio = ratio
        self.enabled = True
        self.caller_decides = True
        # Not SystemRandom: a system call for every request. A fork would repeat ids, but
        # no SITS process forks once it serves (see docs/tracing.md).
        self._rng = rng or random.Random()  # noqa: S311 - ids must be unique, not secret
        self._ring: deque[SpanRecord] = deque(maxlen=ring_size)
        self._sinks: tuple[Callable[[SpanRecord], object], ...] = ()

    def add_sink(self, sink: Callable[[SpanRecord], object]) -> None:
        """`sink` gets every finished span, must not block and must not raise."""
        self._sinks = (*self._sinks, sink)

    def incoming(self, traceparent: str | None, ratio: float | None = None) -> TraceContext | None:
        """Context of a request at the edge; None = not sampled.

        `ratio` takes the place of the tracer's own. A trace that starts here has a parent
        span id of zero.
        """
        if not self.enabled:
            return None
        if traceparent is None or not is_traceparent(traceparent):
            return self.new_trace() if self._chosen(ratio) else None
        asked_for = traceparent[54] in _SAMPLED_DIGITS
        sampled = asked_for if self.caller_decides else self._chosen(ratio)
        return TraceContext.from_traceparent(traceparent) if sampled else None

    def _chosen(self, ratio: float | None) -> bool:
        return self._rng.random() < (self.ratio if ratio is None else ratio)

    def new_trace(self) -> TraceContext:
        return TraceContext(self._rng.randbytes(16), _NO_PARENT)

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
        self._ring.append(span)
        for sink in self._sinks:
            sink(span)
        return TraceContext(parent.trace_id, own)

    def spans(self, trace_id: bytes | None = None, limit: int = 1000) -> list[SpanRecord]:
        """Newest last; those of one trace, or the newest of all."""
        chosen = [s for s in self._kept() if trace_id is None or s.trace_id == trace_id]
        return chosen[-limit:]

    def _kept(self) -> list[SpanRecord]:
        # No lock, for the sake of `record`: reading starts again when it got in between.
        while True:
            with contextlib.suppress(RuntimeError):
                return list(self._ring)

    def __repr__(self) -> str:
        return f"<Tracer {self.service} ratio={self.ratio} kept={len(self._ring)}>"
