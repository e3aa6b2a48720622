"""Spans without the SDK's cost on the hot path: a tuple when sampled, a flag check when not.

Finished spans lie in a bounded ring for `sits trace`, and go to an exporter thread when
an OTLP endpoint is configured (`sits_core.otlp`).
"""

import itertools
import random
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
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
_ALL_IDS = (1 << 64) - 1


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
        return cls.of_wire(data) if is_sampled(data) else None

    @classmethod
    def of_wire(cls, data: bytes) -> "TraceContext":
        """Of what `is_sampled`."""
        return cls(data[:16], data[16:24])

    @classmethod
    def from_traceparent(cls, text: str) -> "TraceContext":
        """Of a well-formed W3C `traceparent`, whatever its sampled flag says."""
        return cls(bytes.fromhex(text[3:35]), bytes.fromhex(text[36:52]))


def is_sampled(data: bytes) -> bool:
    """Whether it is the wire form of a sampled context."""
    return len(data) == _WIRE_BYTES and data[24] & _SAMPLED != 0


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


def span_below(
    parent: TraceContext,
    span_id: bytes,
    name: str,
    start_ns: int,
    end_ns: int,
    attributes: Mapping[str, Attribute],
    links: tuple[TraceContext, ...] = (),
    error: str = "",
) -> SpanRecord:
    trace_id, parent_id = parent
    return SpanRecord(
        name, trace_id, span_id, parent_id, start_ns, end_ns, attributes, links, error
    )


NewId = Callable[[], bytes]
Make = Callable[[NewId], list[SpanRecord]]
"""Makes finished spans out of what it remembers, the same each time; it is given what makes
span ids."""


class Later:
    """So many finished spans that are put together whenever somebody wants to see them. They are
    the same each time, and nobody keeps them: the ring holds only what they are made of."""

    __slots__ = ("_first_id", "_make", "count")

    def __init__(self, count: int, make: Make, first_id: int) -> None:
        self.count = count
        self._make, self._first_id = make, first_id

    def spans(self) -> list[SpanRecord]:
        ids = itertools.count(self._first_id)
        return self._make(lambda: (next(ids) & _ALL_IDS).to_bytes(8, "big"))


Finished = SpanRecord | Later


def spans_in(finished: Iterable[Finished]) -> Iterator[SpanRecord]:
    """Those for later are made when their turn comes."""
    for item in finished:
        if isinstance(item, Later):
            yield from item.spans()
        else:
            yield item


def count_of(finished: Finished) -> int:
    return finished.count if isinstance(finished, Later) else 1


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
        self._ring: deque[Finished] = deque()
        self._ring_size, self._kept = ring_size, 0
        self._lock = threading.Lock()
        self._sinks: tuple[Callable[[Finished], object], ...] = ()

    def add_sink(self, sink: Callable[[Finished], object]) -> None:
        """`sink` gets all that is finished, must not block and must not raise."""
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
        self._keep(span_below(parent, own, name, start_ns, end_ns, attributes, links, error))
        return TraceContext(parent.trace_id, own)

    def record_later(self, count: int, make: Make) -> None:
        """Keep `count` finished spans that `make` puts together when somebody wants them: many
        spans of one batch for the price of one. `make` should not hold what is large."""
        self._keep(Later(count, make, self._rng.getrandbits(64)))

    def spans(self, trace_id: bytes | None = None, limit: int = 1000) -> list[SpanRecord]:
        """Newest last; those of one trace, or the newest of all."""
        with self._lock:
            kept = list(self._ring)
        chosen = [s for s in spans_in(kept) if trace_id is None or s.trace_id == trace_id]
        return chosen[-limit:]

    def _keep(self, finished: Finished) -> None:
        with self._lock:
            self._ring.append(finished)
            self._kept += count_of(finished)
            while self._kept > self._ring_size:
                self._kept -= count_of(self._ring.popleft())
        for sink in self._sinks:
            sink(finished)

    def __repr__(self) -> str:
        return f"<Tracer {self.service} ratio={self.ratio} kept={self._kept}>"
