"""Metrics of batching at the front door."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from sits_core.metrics import PayloadCopies, PlainHistogram
from sits_preprocess.batch_message import Built
from sits_protos.v1.link_pb2 import ResultHeader
from sits_scheduling.batching import CloseReason
from sits_scheduling.quotas import Reason

_REASONS = frozenset(reason.value for reason in Reason)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class EngineMetrics:
    """Counted once per batch, not per request."""

    def __init__(self, registry: CollectorRegistry) -> None:
        closed = Counter(
            "sits_batch_closed", "Batches by why they were closed", ["reason"], registry=registry
        )
        self._copies = PayloadCopies(registry)
        self._closed = {reason: closed.labels(reason.name.lower()) for reason in CloseReason}
        self._requests = PlainHistogram(
            "sits_batch_requests", "Requests in a batch", _SIZES, registry
        )
        self._rows = PlainHistogram("sits_batch_rows", "Rows in a batch", _SIZES, registry)
        refused = Counter(
            "sits_preprocess_refused", "Requests refused at once, by why", ["reason"],
            registry=registry,
        )  # fmt: skip
        self._refused = {reason: refused.labels(reason.value) for reason in Reason}
        self.queued = Gauge("sits_preprocess_queued", "Requests not sent yet", registry=registry)
        self.late_results = Counter(
            "sits_preprocess_late_results", "Results nobody waited for", registry=registry
        )

    def refused(self, reason: Reason) -> None:
        self._refused[reason].inc()

    def turned_away(self, reason: str, requests: int) -> None:
        """Other reasons, such as a full queue, are not counted here."""
        if reason in _REASONS:
            self._refused[Reason(reason)].inc(requests)

    def closed(self, reason: CloseReason, requests: int, rows: int) -> None:
        """Under the engine's lock."""
        self._closed[reason].inc()
        self._requests.observe(requests)
        self._rows.observe(rows)

    def sent(self, built: Built, requests: int) -> None:
        """Out of the clients' messages; what goes inline also into one piece, the message, its
        bytes, and the link."""
        payload = built.payload_bytes
        self._copies.count("request", payload, payload, requests)
        self._copies.count("batch", 4 * built.inline_bytes, payload, requests)

    def returned(self, header: ResultHeader) -> None:
        """What came inline out of the link and out of the message, the rest out of its slot;
        then into the responses."""
        payload, requests = header.payload_bytes, header.requests
        self._copies.count("result", payload + header.inline_bytes, payload, requests)
        self._copies.count("response", payload, payload, requests)
