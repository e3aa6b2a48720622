"""Metrics of finished requests, counted in plain numbers and put into form when scraped.

A labelled series of the client library takes a lock and several calls for each number it
counts, some five microseconds a request for the three series here; this takes one lock for
all answers that come together.
"""

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from sits_core.metrics import OVERFLOW
from sits_preprocess.request import Answered

BOUNDS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_BOUNDS_NS: Final = [int(bound * 1e9) for bound in BOUNDS_S]
_LE: Final = [*map(floatToGoString, BOUNDS_S), "+Inf"]
MAX_PAIRS: Final = 200
"""About 40 series each, of the 10,000 a process shows."""

_LABELS: Final = ("model", "tenant")


class _Durations:
    """A histogram. Its fields are changed directly: `counts` by `bisect_left(_BOUNDS_NS, ns)`,
    and by the same number in `traced` the last request of that bucket that has a trace."""

    __slots__ = ("counts", "total_ns", "traced")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS_NS) + 1)
        self.total_ns = 0
        self.traced: dict[int, tuple[bytes, int, int]] = {}

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        below = 0
        buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
        for place, (bound, count) in enumerate(zip(_LE, self.counts, strict=True)):
            below += count
            last = self._exemplar(place)
            buckets.append((bound, float(below), last) if last else (bound, float(below)))
        family.add_metric(labels, buckets, self.total_ns / 1e9)

    def _exemplar(self, place: int) -> Exemplar | None:
        """Leads from a bucket to a trace. Shown to scrapers that ask for OpenMetrics."""
        if (last := self.traced.get(place)) is None:
            return None
        trace_id, took_ns, ended_ns = last
        return Exemplar({"trace_id": trace_id.hex()}, took_ns / 1e9, ended_ns / 1e9)


class _Pair:
    """The series of one model and tenant."""

    __slots__ = ("outcomes", "queued", "took")

    def __init__(self) -> None:
        self.outcomes: dict[str, int] = {}
        self.took, self.queued = _Durations(), _Durations()


class RequestSeries(Collector):
    """Safe from any thread.

    At most `MAX_PAIRS` pairs of model and tenant have series of their own. Requests that
    named no model we know share the pair of all others: clients choose names freely.
    """

    def __init__(self, settled: Callable[[], None] = lambda: None) -> None:
        """`settled` waits until all that was answered is counted."""
        self._settled = settled
        self._others = _Pair()
        self._pairs: dict[tuple[str, str], _Pair] = {(OVERFLOW, OVERFLOW): self._others}
        self._lock = threading.Lock()

    def count(self, answered: Sequence[Answered], outcomes: Sequence[str], ended_ns: int) -> None:
        """Requests that were answered at `ended_ns`, each with the name of its gRPC status."""
        bounds = _BOUNDS_NS
        with self._lock:
            for (request, answer), outcome in zip(answered, outcomes, strict=True):
                pair = self._pairs.get((request.model, request.tenant)) or self._add(
                    request.model, request.tenant
                )
                pair.outcomes[outcome] = pair.outcomes.get(outcome, 0) + 1
                received_ns = request.received_ns
                took_ns = ended_ns - received_ns
                place = bisect_left(bounds, took_ns)
                pair.took.counts[place] += 1
                pair.took.total_ns += took_ns
                if request.trace is not None:
                    pair.took.traced[place] = (request.trace.trace_id, took_ns, ended_ns)
                if closed_ns := answer.run.times.batch_closed:
                    queued_ns = max(0, closed_ns - received_ns)
                    pair.queued.counts[bisect_left(bounds, queued_ns)] += 1
                    pair.queued.total_ns += queued_ns

    def count_refused(
        self, model: str, tenant: str, outcome: str, requests: int, took_ns: int
    ) -> None:
        """So many that came and were refused together."""
        with self._lock:
            pair = self._pairs.get((model, tenant)) or self._add(model, tenant)
            pair.outcomes[outcome] = pair.outcomes.get(outcome, 0) + requests
            pair.took.counts[bisect_left(_BOUNDS_NS, took_ns)] += requests
            pair.took.total_ns += requests * took_ns

    def collect(self) -> Iterator[Metric]:
        self._settled()
        requests = CounterMetricFamily(
            "sits_requests", "Requests answered", labels=(*_LABELS, "outcome")
        )
        took = HistogramMetricFamily(
            "sits_request_seconds", "From a request's arrival to its answer", labels=_LABELS
        )
        queued = HistogramMetricFamily(
            "sits_queue_seconds",
            "From a request's arrival to the closing of its batch",
            labels=_LABELS,
        )
        with self._lock:
            for names, pair in self._pairs.items():
                for outcome, count in pair.outcomes.items():
                    requests.add_metric((*names, outcome), count)
                if pair.outcomes:
                    pair.took.add_to(took, names)
                    pair.queued.add_to(queued, names)
        return iter((requests, took, queued))

    def _add(self, model: str, tenant: str) -> _Pair:
        if not model or len(self._pairs) > MAX_PAIRS:
            return self._others
        return self._pairs.setdefault((model, tenant), _Pair())
