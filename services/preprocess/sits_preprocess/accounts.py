"""What is kept about every finished request: metrics, statistics, and spans when sampled."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from prometheus_client import CollectorRegistry

from sits_core.errors import SitsError
from sits_core.tracing import Attribute, NewId, SpanRecord, TraceContext, Tracer, span_below
from sits_preprocess.oip.result import Result
from sits_preprocess.request import Answer, Answered, Request
from sits_preprocess.request_series import RequestSeries
from sits_preprocess.settling import Settling
from sits_preprocess.statistics import Statistics

OK = "OK"


class Whose(NamedTuple):
    """What the requests of one model and tenant are accounted to."""

    model: str
    version: str
    tenant: str


class Accounts:
    """Safe from any thread; takes each of its locks once for all answers that come together."""

    def __init__(self, registry: CollectorRegistry, statistics: Statistics, tracer: Tracer) -> None:
        self.statistics, self._tracer = statistics, tracer
        self.settling = Settling()
        statistics.settled = self.settling.wait
        self._series = RequestSeries(self.settling.wait)
        registry.register(self._series)

    def finished(
        self, answered: Sequence[Answered], results: Sequence[Result], ended_ns: int
    ) -> None:
        """`results` say what the clients got: an answer may turn into an error on its way."""
        failed = [result.error for result in results]
        outcomes = [OK if error is None else error.status.name for error in failed]
        self._series.count(answered, outcomes, ended_ns)
        self.statistics.record(answered, failed, ended_ns)
        traced = [
            _traced(request, answer, outcome, request.parent, request.trace)
            for (request, answer), outcome in zip(answered, outcomes, strict=True)
            if request.parent is not None and request.trace is not None
        ]
        if traced:
            count = sum([1 + bool(one.closed_ns) + bool(one.returned_ns) for one in traced])
            self._tracer.record_later(count, partial(_spans, traced, ended_ns))

    def turned_away(self, whose: Whose, error: SitsError, requests: int, took_ns: int) -> None:
        """So many were refused before anything was made of them."""
        self._series.count_refused(whose.model, whose.tenant, error.status.name, requests, took_ns)
        self.statistics.record_refused((whose.model, whose.version), requests, took_ns)


class _Traced(NamedTuple):
    """What is remembered of a sampled request; `own` is the context of its span."""

    parent: TraceContext
    own: TraceContext
    received_ns: int
    closed_ns: int
    returned_ns: int
    model: str
    version: str
    tenant: str
    rows: int
    payload_bytes: int
    cached: str
    error: str


def _traced(
    request: Request, answer: Answer, outcome: str, parent: TraceContext, own: TraceContext
) -> _Traced:
    times = answer.run.times
    return _Traced(
        parent, own, request.received_ns, times.batch_closed,
        times.dispatcher_returned, request.model, request.version, request.tenant, request.rows,
        request.payload_bytes, answer.run.cached, "" if outcome == OK else outcome,
    )  # fmt: skip


def _spans(traced: Sequence[_Traced], ended_ns: int, new_id: NewId) -> list[SpanRecord]:
    return [span for one in traced for span in _of_request(one, ended_ns, new_id)]


def _of_request(one: _Traced, ended_ns: int, new_id: NewId) -> Iterator[SpanRecord]:
    """The request itself, its wait for a batch, and the way of its answer to the client."""
    said: dict[str, Attribute] = {
        "model": one.model,
        "version": one.version,
        "tenant": one.tenant,
        "rows": one.rows,
        "bytes": one.payload_bytes,
    }
    if one.cached:
        said["cache"] = one.cached
    yield span_below(
        one.parent, one.own.span_id, "preprocess.request", one.received_ns, ended_ns, said,
        error=one.error,
    )  # fmt: skip
    if one.closed_ns:
        waited: dict[str, Attribute] = {"model": one.model, "tenant": one.tenant}
        yield span_below(
            one.own, new_id(), "preprocess.queue", one.received_ns, one.closed_ns, waited
        )
    if one.returned_ns:
        yield span_below(one.own, new_id(), "preprocess.answer", one.returned_ns, ended_ns, {})
