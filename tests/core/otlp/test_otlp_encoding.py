"""OTLP messages of spans, compared with what the SDK makes of the same."""

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.resources import Resource as SdkResource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from sits_core.otlp_encoding import MAX_LINKS, SLICE_SPANS, encode, encode_resource
from sits_core.tracing import Attribute, SpanRecord, TraceContext

PARENT = TraceContext(b"t" * 16, b"p" * 8)
ATTRIBUTES: dict[str, Attribute] = {"model": "mlp", "rows": 8, "share": 0.5, "hit": True, "é": "ü"}


def record(**changes: object) -> SpanRecord:
    base = SpanRecord(
        "executor.infer", PARENT.trace_id, b"s" * 8, PARENT.span_id, 10, 20, ATTRIBUTES
    )
    return base._replace(**changes)


def parsed(request: bytes) -> ExportTraceServiceRequest:
    return ExportTraceServiceRequest.FromString(request)


def encoded(span: SpanRecord) -> Span:
    request = parsed(encode([span], encode_resource({})))
    return request.resource_spans[0].scope_spans[0].spans[0]


def of_sdk(span: SpanRecord) -> ReadableSpan:
    def context(trace_id: bytes, span_id: bytes) -> SpanContext:
        ids = int.from_bytes(trace_id, "big"), int.from_bytes(span_id, "big")
        return SpanContext(*ids, is_remote=False, trace_flags=TraceFlags(1))

    return ReadableSpan(
        span.name,
        context(span.trace_id, span.span_id),
        context(span.trace_id, span.parent_id) if any(span.parent_id) else None,
        SdkResource({"service.name": "sits-executor"}),
        dict(span.attributes),
        links=[Link(context(*link)) for link in span.links],
        kind=SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
        start_time=span.start_ns,
        end_time=span.end_ns,
    )


@pytest.mark.parametrize(
    "span",
    [
        record(),
        record(parent_id=bytes(8)),
        record(attributes={}, links=(PARENT, TraceContext(b"o" * 16, b"q" * 8))),
        record(error="the model failed: é"),
    ],
)
def test_a_span_is_encoded_as_the_sdk_encodes_it(span: SpanRecord) -> None:
    resource = encode_resource({"service.name": "sits-executor"})
    ours, theirs = parsed(encode([span], resource)), encode_spans([of_sdk(span)])
    for request in (ours, theirs):
        for item in request.resource_spans[0].scope_spans[0].spans:
            item.flags = 0
            item.ClearField("status") if not item.status.code else None
            for link in item.links:
                link.flags = 0
        request.resource_spans[0].scope_spans[0].ClearField("scope")
    assert ours == theirs


def test_a_request_span_is_of_kind_server() -> None:
    assert encoded(record(name="preprocess.request")).kind == Span.SPAN_KIND_SERVER
    assert encoded(record(name="preprocess.queue")).kind == Span.SPAN_KIND_INTERNAL


def test_equal_values_of_different_types_stay_apart() -> None:
    kinds = [
        encoded(record(attributes={"x": value})).attributes[0].value.WhichOneof("value")
        for value in (1, 1.0, True, "1")
    ]
    assert kinds == ["int_value", "double_value", "bool_value", "string_value"]


@pytest.mark.parametrize(
    ("value", "text"), [(2**63, str(2**63)), (-(2**70), str(-(2**70))), ("\ud800", "?")]
)
def test_values_that_protobuf_cannot_hold_become_text(value: Attribute, text: str) -> None:
    assert encoded(record(attributes={"x": value})).attributes[0].value.string_value == text


def test_links_are_bounded_and_the_rest_counted() -> None:
    span = encoded(record(links=(PARENT,) * (MAX_LINKS + 5)))
    assert (len(span.links), span.dropped_links_count) == (MAX_LINKS, 5)


def test_every_span_arrives_and_pauses_come_between_slices() -> None:
    pauses: list[None] = []
    spans = [record(start_ns=number) for number in range(SLICE_SPANS * 2 + 1)]
    request = parsed(encode(spans, encode_resource({}), lambda: pauses.append(None)))
    sent = request.resource_spans[0].scope_spans[0].spans
    assert [span.start_time_unix_nano for span in sent] == list(range(len(spans)))
    assert len(pauses) == 3


@pytest.mark.parametrize("size", [1, 127, 128, 16_383, 16_384, 3_000_000])
def test_texts_of_any_length_are_framed_rightly(size: int) -> None:
    found = encoded(record(attributes={"x": "y" * size}, error="e" * size))
    assert len(found.attributes[0].value.string_value) == len(found.status.message) == size


def test_times_of_today_are_kept_to_the_nanosecond() -> None:
    found = encoded(record(start_ns=1_796_000_000_123_456_789, end_ns=2**64 - 1))
    assert found.start_time_unix_nano == 1_796_000_000_123_456_789
    assert found.end_time_unix_nano == 2**64 - 1
