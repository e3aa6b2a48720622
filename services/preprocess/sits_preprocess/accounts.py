"""What is kept about every finished request: metrics, statistics, and spans when sampled."""

import threading
from collections.abc import Callable
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram

from sits_core.metrics import OVERFLOW
from sits_core.tracing import TraceContext, Tracer
from sits_preprocess.statistics import Statistics

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
MAX_PAIRS = 200
"""About 40 series each, of the 10,000 a process shows."""
OK = "OK"


class Finished(NamedTuple):
    """Facts of an answered request. `model` is empty when it named none that we know.

    `outcome` is the name of the gRPC status. `parent` and `trace` are None when the
    request is not sampled; `trace` is the context of the request's own span.
    """

    model: str
    version: str
    tenant: str
    rows: int
    payload_bytes: int
    received_ns: int
    batch_closed_ns: int
    ended_ns: int
    outcome: str
    parent: TraceContext | None
    trace: TraceContext | None


class _Pair:
    """The series of one model and tenant; looking them up by label costs more than counting."""

    __slots__ = ("_open", "_outcomes", "queue_seconds", "seconds")

    def __init__(
        self, open_counter: Callable[[str], Counter], seconds: Histogram, queue_seconds: Histogram
    ) -> None:
        self._open, self.seconds, self.queue_seconds = open_counter, seconds, queue_seconds
        self._outcomes: dict[str, Counter] = {}

    def outcome(self, name: str) -> Counter:
        counter = self._outcomes.get(name)
        if counter is None:
            counter = self._outcomes[name] = self._open(name)
        return counter


class Accounts:
    """Safe from any thread; a few microseconds a request.

    At most `MAX_PAIRS` pairs of model and tenant have series of their own. Requests that
    named no model we know share the pair of all others: clients choose names freely.
    """

    def __init__(self, registry: CollectorRegistry, statistics: Statistics, tracer: Tracer) -> None:
        self.statistics, self._tracer = statistics, tracer
        names = ("model", "tenant")
        self._requests = Counter(
            "sits_requests", "Requests answered", (*names, "outcome"), registry=registry
        )
        self._seconds = Histogram(
            "sits_request_seconds",
            "From a request's arrival to its answer",
            names,
            buckets=SECONDS,
            registry=registry,
        )
        self._queue_seconds = Histogram(
            "sits_queue_seconds",
            "From a request's arrival to the closing of its batch",
            names,
            buckets=SECONDS,
            registry=registry,
        )
        self._lock = threading.Lock()
        self._pairs: dict[tuple[str, str], _Pair] = {}
        self._others = self._pair(OVERFLOW, OVERFLOW)

    def finished(self, request: Finished) -> None:
        pair = self._others
        if request.model:
            pair = self._pairs.get((request.model, request.tenant)) or self._add(request)
        pair.outcome(request.outcome).inc()
        pair.seconds.observe((request.ended_ns - request.received_ns) / 1e9)
        if request.batch_closed_ns:
            queue_ns = max(0, request.batch_closed_ns - request.received_ns)
            pair.queue_seconds.observe(queue_ns / 1e9)
        if request.parent is not None and request.trace is not None:
            self._spans(request, request.parent, request.trace)

    def _add(self, request: Finished) -> "_Pair":
        with self._lock:
            if len(self._pairs) >= MAX_PAIRS:
                return self._others
            names = (request.model, request.tenant)
            return self._pairs.setdefault(names, self._pair(*names))

    def _pair(self, model: str, tenant: str) -> "_Pair":
        return _Pair(
            lambda outcome: self._requests.labels(model, tenant, outcome),
            self._seconds.labels(model, tenant),
            self._queue_seconds.labels(model, tenant),
        )

    def _spans(self, request: Finished, parent: TraceContext, own: TraceContext) -> None:
        self._tracer.record(
            "preprocess.request",
            parent,
            request.received_ns,
            request.ended_ns,
            {
                "model": request.model,
                "version": request.version,
                "tenant": request.tenant,
                "rows": request.rows,
                "bytes": request.payload_bytes,
            },
            span_id=own.span_id,
            error="" if request.outcome == OK else request.outcome,
        )
        if request.batch_closed_ns:
            self._tracer.record(
                "preprocess.queue",
                own,
                request.received_ns,
                request.batch_closed_ns,
                {"model": request.model, "tenant": request.tenant},
            )
