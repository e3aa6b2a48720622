"""Turns finished spans into OTLP messages, in bulk.

The bytes are written here: protobuf's own objects for a span with five attributes take 6 µs,
the SDK's span objects and encoder 24 µs; this takes 2 µs, the making of the span included.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from itertools import islice, starmap
from struct import Struct

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from sits_core.tracing import Attribute, SpanRecord, TraceContext

MAX_LINKS = 128
"""Links a span keeps, as in the SDK; keeps a batch of spans below 4 MiB, which is what
collectors accept by default."""

SLICE_SPANS = 64
"""Spans encoded in one go: 0.15 ms in which requests wait for the interpreter."""

_NO_PARENT = bytes(8)
_FLAG_SAMPLED = 1

# Fields of a span, each with its tag and, where it has one, its length: trace_id, span_id,
# then parent_span_id where there is one, then the two times.
_ROOT = Struct("<2s16s2s8scQcQ")
_CHILD = Struct("<2s16s2s8s2s8scQcQ")
_ATTRIBUTE_TAG = b"\x4a"


def encode(
    spans: Iterable[SpanRecord], resource: bytes, pause: Callable[[], object] = lambda: None
) -> bytes:
    """An `ExportTraceServiceRequest`; `pause` is called between slices of spans."""
    rest, scope_spans = iter(spans), [_SCOPE]
    while piece := b"".join(map(_span, islice(rest, SLICE_SPANS))):
        scope_spans.append(piece)
        pause()
    return _field(b"\x0a", resource + _field(b"\x12", b"".join(scope_spans)))


def encode_resource(attributes: Mapping[str, Attribute]) -> bytes:
    """What `encode` is to be given."""
    pairs = [KeyValue(key=key, value=_value(value)) for key, value in attributes.items()]
    return _field(b"\x0a", Resource(attributes=pairs).SerializeToString())


def _span(record: SpanRecord) -> bytes:
    name, trace_id, span_id, parent_id, start_ns, end_ns, attributes, links, error = record
    if parent_id == _NO_PARENT:
        ids = _ROOT.pack(
            b"\x0a\x10", trace_id, b"\x12\x08", span_id, b"\x39", start_ns, b"\x41", end_ns
        )
    else:
        ids = _CHILD.pack(
            b"\x0a\x10", trace_id, b"\x12\x08", span_id, b"\x22\x08", parent_id,
            b"\x39", start_ns, b"\x41", end_ns,
        )  # fmt: skip
    body = ids + _named(name) + b"".join(starmap(_attribute, attributes.items()))
    if links or error:
        body += _links_and_error(links, error)
    return b"\x12" + _length(len(body)) + body


@lru_cache(maxsize=256)
def _named(name: str) -> bytes:
    """Name, kind and flags. Requests are where a client's call enters the mesh."""
    kind = Span.SPAN_KIND_SERVER if name.endswith(".request") else Span.SPAN_KIND_INTERNAL
    return Span(name=name, kind=kind, flags=_FLAG_SAMPLED).SerializeToString()


@lru_cache(maxsize=256)
def _links_and_error(links: tuple[TraceContext, ...], error: str) -> bytes:
    """Few: links are the published weights, errors have reasons of a short list."""
    span = Span(links=map(_link, links[:MAX_LINKS]))
    span.dropped_links_count = max(0, len(links) - MAX_LINKS)
    if error:
        span.status.CopyFrom(Status(code=Status.STATUS_CODE_ERROR, message=_text(error)))
    return span.SerializeToString()


def _link(context: TraceContext) -> Span.Link:
    return Span.Link(trace_id=context.trace_id, span_id=context.span_id, flags=_FLAG_SAMPLED)


@lru_cache(maxsize=4096, typed=True)
def _attribute(key: str, value: Attribute) -> bytes:
    """Most repeat: model, version, rows. Typed, because 1, 1.0 and True are equal keys."""
    return _field(_ATTRIBUTE_TAG, KeyValue(key=key, value=_value(value)).SerializeToString())


def _value(value: Attribute) -> AnyValue:
    match value:
        case bool():
            return AnyValue(bool_value=value)
        case int() if -(2**63) <= value < 2**63:
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case _:
            return AnyValue(string_value=_text(str(value)))


def _text(text: str) -> str:
    """Protobuf refuses lone surrogates, and one bad span must not cost its whole batch."""
    return text.encode("utf-8", "replace").decode()


def _field(tag: bytes, content: bytes) -> bytes:
    return tag + _length(len(content)) + content


@lru_cache(maxsize=1024)
def _length(count: int) -> bytes:
    """As a base-128 varint."""
    low, high = count & 0x7F, count >> 7
    return bytes((low | 0x80,)) + _length(high) if high else bytes((low,))


_SCOPE = _field(b"\x0a", InstrumentationScope(name="sits").SerializeToString())
