"""The OpenTelemetry SDK's own OTLP exporters, fed with bytes that are encoded already.

They bring what OTEL_EXPORTER_OTLP_HEADERS, _TIMEOUT, _COMPRESSION, _CERTIFICATE and
_CLIENT_* say, TLS, and retries. Importing them takes a quarter of a second, so only the
exporter thread does it.
"""

import logging
from collections import deque
from collections.abc import Sequence

import grpc
import requests
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace.export import SpanExportResult

from sits_core.otlp_target import Protocol, Target
from sits_core.tracing import Attribute

_SDK_LOGGER = "opentelemetry.exporter"


class Sender:
    """Sends to one collector. `send` blocks for up to OTEL_EXPORTER_OTLP_TIMEOUT seconds."""

    def __init__(self, target: Target) -> None:
        self._exporter: _Grpc | _Http
        if target.protocol is Protocol.GRPC:
            self._exporter = _Grpc(endpoint=target.url, insecure=not target.secure)
        else:
            self._exporter = _Http(endpoint=target.url, session=_Session())
        self._heard = _LastWords()
        logger = logging.getLogger(_SDK_LOGGER)
        logger.addHandler(self._heard)
        # It logs every attempt; the exporter thread says the same once a minute.
        logger.propagate = False

    def send(self, request: bytes) -> str | None:
        """None when the collector took it, otherwise why not. `request` is an encoded
        `ExportTraceServiceRequest`."""
        self._heard.words.clear()
        return None if self._exporter.send(request) else str(self._heard)

    def shutdown(self) -> None:
        """Ends waiting and retries of `send` in another thread."""
        self._exporter.shutdown()


def resource_attributes(defaults: dict[str, Attribute]) -> dict[str, Attribute]:
    """`defaults`, overruled by OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME."""
    merged = Resource(defaults).merge(OTELResourceDetector().detect())
    return {key: value for key, value in merged.attributes.items() if isinstance(value, Attribute)}


class _LastWords(logging.Handler):
    """Remembers what was logged last: the SDK returns no reason for a failure, and over
    HTTP its final line has none, but the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.words: deque[str] = deque(maxlen=2)

    def emit(self, record: logging.LogRecord) -> None:
        self.words.append(record.getMessage()[:500])

    def __str__(self) -> str:
        return " / ".join(self.words) or "no reason given"


class _Grpc(GrpcExporter):
    def send(self, request: bytes) -> bool:
        return self.export((request,)) is SpanExportResult.SUCCESS  # type: ignore[arg-type]  # see below

    def _initialize_channel_and_stub(self) -> None:
        super()._initialize_channel_and_stub()  # type: ignore[no-untyped-call]  # the SDK's
        self._client = _BytesStub(self._channel)  # type: ignore[arg-type, assignment]  # None at first

    def _translate_data(  # type: ignore[override]  # given what the parent makes of spans
        self, data: Sequence[bytes]
    ) -> bytes:
        return data[0]


class _BytesStub:
    """The collector's service, for requests that are bytes already."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.Export = channel.unary_unary(
            "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
            request_serializer=None,
            response_deserializer=ExportTraceServiceResponse.FromString,
        )


class _Http(HttpExporter):
    def send(self, request: bytes) -> bool:
        return self._client.export(request).success


class _Session(requests.Session):
    """Without this, REQUESTS_CA_BUNDLE would win over the CA that the OTEL_ variable names."""

    def merge_environment_settings(
        self,
        url: str,
        proxies: dict[str, str] | None,
        stream: bool | None,
        verify: bool | str | None,
        cert: str | tuple[str, str] | None,
    ) -> dict[str, object]:
        verify = self.verify if verify is None else verify
        return super().merge_environment_settings(url, proxies, stream, verify, cert)
