"""Turns finished spans into OTLP messages, in bulk.

Through the SDK's own span objects and encoder this takes 24 µs a span with five
attributes; here it takes 7 to 11 µs, the more repeated attributes the less.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import islice

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from sits_core.tracing import Attribute, SpanRecord, TraceContext

MAX_LINKS = 128
"""Links a span keeps, as in the SDK; keeps a batch of spans below 4 MiB, which is what
collectors accept by default."""

SLICE_SPANS = 32
"""Spans encoded in one go: 0.3 ms in which requests wait for the interpreter."""

_SCOPE = InstrumentationScope(name="sits")
_NO_PARENT = bytes(8)
_FLAG_SAMPLED = 1


def encode(
    spans: Sequence[SpanRecord], resource: Resource, pause: Callable[[], object] = lambda: None
) -> ExportTraceServiceRequest:
    """One request to a collector; `pause` is called between slices of spans."""
    request = ExportTraceServiceRequest()
    of_resource = request.resource_spans.add(resource=resource)
    target = of_resource.scope_spans.add(scope=_SCOPE).spans
    rest = iter(spans)
    while piece := list(islice(rest, SLICE_SPANS)):
        target.extend(map(_span, piece))
        pause()
    return request


def encode_resource(attributes: Mapping[str, Attribute]) -> Resource:
    return Resource(attributes=[_attribute(*item) for item in attributes.items()])


def _span(record: SpanRecord) -> Span:
    span = Span(
        trace_id=record.trace_id,
        span_id=record.span_id,
        name=record.name,
        # Where a client's call enters the mesh.
        kind=Span.SPAN_KIND_SERVER if record.name.endswith(".request") else Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=record.start_ns,
        end_time_unix_nano=record.end_ns,
        attributes=[_attribute(*item) for item in record.attributes.items()],
        flags=_FLAG_SAMPLED,
    )
    if record.parent_id != _NO_PARENT:
        span.parent_span_id = record.parent_id
    if record.links:
        span.links.extend(map(_link, record.links[:MAX_LINKS]))
        span.dropped_links_count = max(0, len(record.links) - MAX_LINKS)
    if record.error:
        span.status.CopyFrom(Status(code=Status.STATUS_CODE_ERROR, message=_text(record.error)))
    return span


def _link(context: TraceContext) -> Span.Link:
    return Span.Link(trace_id=context.trace_id, span_id=context.span_id, flags=_FLAG_SAMPLED)


@lru_cache(maxsize=4096, typed=True)
def _attribute(key: str, value: Attribute) -> KeyValue:
    """Most repeat: model, version, rows. Typed, because 1, 1.0 and True are equal keys."""
    return KeyValue(key=key, value=_value(value))


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
