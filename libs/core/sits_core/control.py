"""The part of `sits.v1.Control` that all services answer alike."""

import math
from collections.abc import Collection, Iterator
from itertools import islice

import grpc
from prometheus_client import CollectorRegistry
from prometheus_client.samples import Sample

from sits_core.clock import now_ns
from sits_core.drain import Drain
from sits_core.errors import InvalidArgument, Unimplemented
from sits_core.metrics import MAX_SERIES
from sits_core.tracing import SpanRecord, Tracer
from sits_protos.v1 import control_pb2 as pb
from sits_protos.v1.control_pb2_grpc import ControlServicer
from sits_protos.v1.link_pb2 import Hello

MAX_SPANS = 10_000


class BaseControl(ControlServicer):
    """GetState, GetSpans, GetMetrics and Drain. Services extend `GetState` and add their own
    calls. `metrics` is what GetMetrics tells of."""

    def __init__(
        self,
        hello: Hello,
        tracer: Tracer,
        drain: Drain,
        metrics: CollectorRegistry | None = None,
    ) -> None:
        self._hello, self._tracer, self._drain = hello, tracer, drain
        self._metrics = metrics
        self._started_ns = now_ns()

    def GetState(
        self, request: pb.GetStateRequest, context: grpc.ServicerContext
    ) -> pb.GetStateResponse:
        return pb.GetStateResponse(
            self=self._hello,
            ready=not self._drain.is_set(),
            started_unix_ns=self._started_ns,
            topology_age_s=-1,
        )

    def GetSpans(
        self, request: pb.GetSpansRequest, context: grpc.ServicerContext
    ) -> pb.GetSpansResponse:
        limit = min(request.limit or 1000, MAX_SPANS)
        return remembered(self._tracer, request.trace_id, limit)

    def GetMetrics(
        self, request: pb.GetMetricsRequest, context: grpc.ServicerContext
    ) -> pb.GetMetricsResponse:
        if self._metrics is None:
            raise self._not_here("GetMetrics")
        found = islice(samples(self._metrics, frozenset(request.names)), MAX_SERIES)
        return pb.GetMetricsResponse(samples=map(_sample, found))

    def Drain(self, request: pb.DrainRequest, context: grpc.ServicerContext) -> pb.DrainResponse:
        if not 0 <= request.grace_s < math.inf:  # NaN is neither
            raise InvalidArgument(
                f"expected grace_s to be a number of seconds, 0 = as set, got {request.grace_s}"
            )
        self._drain.begin(request.grace_s)
        return pb.DrainResponse()

    # Calls of some roles only; those override them.

    def SetStrategy(
        self, request: pb.SetStrategyRequest, context: grpc.ServicerContext
    ) -> pb.SetStrategyResponse:
        raise self._not_here("SetStrategy")

    def SetShadow(
        self, request: pb.SetShadowRequest, context: grpc.ServicerContext
    ) -> pb.SetShadowResponse:
        raise self._not_here("SetShadow")

    def Explain(
        self, request: pb.ExplainRequest, context: grpc.ServicerContext
    ) -> pb.ExplainResponse:
        raise self._not_here("Explain")

    def ChooseGang(
        self, request: pb.ChooseGangRequest, context: grpc.ServicerContext
    ) -> pb.ChooseGangResponse:
        raise self._not_here("ChooseGang")

    def LoadModel(
        self, request: pb.LoadModelRequest, context: grpc.ServicerContext
    ) -> pb.LoadModelResponse:
        raise self._not_here("LoadModel")

    def UnloadModel(
        self, request: pb.UnloadModelRequest, context: grpc.ServicerContext
    ) -> pb.UnloadModelResponse:
        raise self._not_here("UnloadModel")

    def ListRepository(
        self, request: pb.ListRepositoryRequest, context: grpc.ServicerContext
    ) -> pb.ListRepositoryResponse:
        raise self._not_here("ListRepository")

    def _not_here(self, call: str) -> Unimplemented:
        return Unimplemented(f"{self._tracer.service} does not serve {call}")


def _span(record: SpanRecord) -> pb.Span:
    return pb.Span(
        trace_id=record.trace_id,
        span_id=record.span_id,
        parent_id=record.parent_id,
        name=record.name,
        start_unix_ns=record.start_ns,
        end_unix_ns=record.end_ns,
        attributes={key: str(value) for key, value in record.attributes.items()},
        links=[pb.SpanLink(trace_id=link.trace_id, span_id=link.span_id) for link in record.links],
        error=record.error,
    )


def remembered(tracer: Tracer, trace_id: bytes, limit: int) -> pb.GetSpansResponse:
    """The spans of one trace, or the newest of all when its id is empty."""
    spans = tracer.spans(trace_id or None, limit)
    return pb.GetSpansResponse(service=tracer.service, spans=map(_span, spans))


def samples(registry: CollectorRegistry, names: Collection[str]) -> Iterator[Sample]:
    """The samples of these names, of all when there are none, as /metrics shows them."""
    found = (sample for metric in registry.collect() for sample in metric.samples)
    return (sample for sample in found if not names or sample.name in names)


def _sample(sample: Sample) -> pb.MetricSample:
    return pb.MetricSample(name=sample.name, labels=sample.labels, value=sample.value)
