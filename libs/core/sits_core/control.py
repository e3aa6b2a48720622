"""The part of `sits.v1.Control` that all services answer alike."""

import threading

import grpc

from sits_core.clock import now_ns
from sits_core.errors import Unimplemented
from sits_core.tracing import SpanRecord, Tracer
from sits_protos.v1 import control_pb2 as pb
from sits_protos.v1.control_pb2_grpc import ControlServicer
from sits_protos.v1.link_pb2 import Hello

MAX_SPANS = 10_000


class BaseControl(ControlServicer):
    """GetState, GetSpans and Drain. Services extend `GetState` and add their own calls."""

    def __init__(self, hello: Hello, tracer: Tracer, drain: threading.Event) -> None:
        self._hello, self._tracer, self._drain = hello, tracer, drain
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
        spans = self._tracer.spans(request.trace_id or None, limit)
        return pb.GetSpansResponse(service=self._tracer.service, spans=map(_span, spans))

    def Drain(self, request: pb.DrainRequest, context: grpc.ServicerContext) -> pb.DrainResponse:
        self._drain.set()
        return pb.DrainResponse()

    # Calls of some roles only; those override them.

    def SetStrategy(
        self, request: pb.SetStrategyRequest, context: grpc.ServicerContext
    ) -> pb.SetStrategyResponse:
        raise self._not_here("SetStrategy")

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
