"""Prometheus metrics of the executor."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from sits_core.errors import Cancelled, DeadlineExceeded
from sits_core.metrics import BoundedLabel, PayloadCopies
from sits_executor.answers import Run
from sits_executor.batch import Batch

_RUN_SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10,
)  # fmt: skip


class Metrics:
    """All series of this process; `of` gives those of one model."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.label = BoundedLabel()
        self.copies = PayloadCopies(registry)
        self.batches = Counter(
            "sits_executor_batches", "Batches answered", ["model"], registry=registry
        )
        self.rows = Counter("sits_executor_rows", "Rows run", ["model"], registry=registry)
        self.run_seconds = Histogram(
            "sits_executor_run_seconds", "One run of the model", ["model"],
            buckets=_RUN_SECONDS, registry=registry,
        )  # fmt: skip
        self.dropped = Counter(
            "sits_executor_dropped", "Requests not run, by reason", ["reason"], registry=registry
        )
        self.errors = Counter(
            "sits_executor_errors", "Failed requests, by reason", ["model", "reason"],
            registry=registry,
        )  # fmt: skip
        self.failed_runs = Counter(
            "sits_executor_failed_runs", "Runs that raised", ["model"], registry=registry
        )
        self.malformed = Counter(
            "sits_executor_malformed", "Link messages that could not be read", registry=registry
        )
        self.links = Gauge("sits_executor_links", "Open links", registry=registry)

    def refused(self, reason: str, requests: int) -> None:
        """Requests answered with an error before they reached a model."""
        self.dropped.labels(reason).inc(requests)

    def of(self, model: str) -> "ModelMetrics":
        return ModelMetrics(self, self.label(model))


class ModelMetrics:
    """The series of one model, looked up once."""

    def __init__(self, metrics: Metrics, label: str) -> None:
        self._metrics, self._label = metrics, label
        self._batches, self._rows = metrics.batches.labels(label), metrics.rows.labels(label)
        self._run_seconds = metrics.run_seconds.labels(label)
        self._failed_runs = metrics.failed_runs.labels(label)

    def timed(self, seconds: float) -> None:
        self._run_seconds.observe(seconds)

    def ran(self, batch: Batch, run: Run) -> None:
        for seconds in run.took_s:
            self._run_seconds.observe(seconds)
        self._batches.inc()
        self._rows.inc(run.executed_rows)
        self._copied(batch, run)
        if run.failed_runs:
            self._failed_runs.inc(run.failed_runs)
        for error in run.errors.values():
            self._metrics.errors.labels(self._label, error.reason).inc()
            if run.execution == 0 or isinstance(error, Cancelled | DeadlineExceeded):
                self._metrics.dropped.labels(error.reason).inc()

    def _copied(self, batch: Batch, run: Run) -> None:
        """Inputs that came inline: out of the link and out of the message. Outputs that go
        inline: out of the array, into the message, its bytes, and the link."""
        header, requests = batch.header, len(batch.requests)
        count = self._metrics.copies.count
        count("input", 2 * header.inline_bytes, header.payload_bytes, requests)
        count("output", 4 * run.inline_bytes, run.output_bytes, requests)
