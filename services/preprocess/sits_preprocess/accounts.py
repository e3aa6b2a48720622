"""What is kept about every finished request: metrics, statistics, and spans when sampled."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry

from sits_core.tracing import TraceContext, Tracer
from sits_preprocess.oip.result import Result
from sits_preprocess.request import Answer, Answered, Request
from sits_preprocess.request_series import RequestSeries
from sits_preprocess.statistics import Statistics

OK = "OK"


class Accounts:
    """Safe from any thread; takes each of its locks once for all answers that come together."""

    def __init__(self, registry: CollectorRegistry, statistics: Statistics, tracer: Tracer) -> None:
        self.statistics, self._tracer = statistics, tracer
        self._series = RequestSeries()
        registry.register(self._series)

    def finished(
        self, answered: Sequence[Answered], results: Sequence[Result], ended_ns: int
    ) -> None:
        """`results` say what the clients got: an answer may turn into an error on its way."""
        failed = [result.error for result in results]
        outcomes = [OK if error is None else error.status.name for error in failed]
        self._series.count(answered, outcomes, ended_ns)
        self.statistics.record(answered, failed, ended_ns)
        for (request, answer), outcome in zip(answered, outcomes, strict=True):
            if request.parent is not None and request.trace is not None:
                self._spans(request, answer, outcome, ended_ns, request.parent, request.trace)

    def _spans(
        self,
        request: Request,
        answer: Answer,
        outcome: str,
        ended_ns: int,
        parent: TraceContext,
        own: TraceContext,
    ) -> None:
        self._tracer.record(
            "preprocess.request",
            parent,
            request.received_ns,
            ended_ns,
            {
                "model": request.model,
                "version": request.version,
                "tenant": request.tenant,
                "rows": request.rows,
                "bytes": request.payload_bytes,
            },
            span_id=own.span_id,
            error="" if outcome == OK else outcome,
        )
        if closed_ns := answer.run.times.batch_closed:
            self._tracer.record(
                "preprocess.queue",
                own,
                request.received_ns,
                closed_ns,
                {"model": request.model, "tenant": request.tenant},
            )
        if returned_ns := answer.run.times.dispatcher_returned:
            self._tracer.record("preprocess.answer", own, returned_ns, ended_ns, {})
