"""Sends finished spans to an OpenTelemetry collector, from a thread of its own.

Requests only append to a bounded queue. Every span ends as exactly one of exported,
dropped (queue full, or the process ended first) or failed (the collector did not take it).
"""

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Protocol

import structlog
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from sits_core.logs import RateLimited
from sits_core.otlp_encoding import encode, encode_resource
from sits_core.otlp_target import Target
from sits_core.tracing import Attribute, Finished, count_of, spans_in

log = structlog.get_logger()

QUEUE_SPANS = 8192
BATCH_SPANS = 1024
POLL_S = 0.2
LINGER_S = 1.0
"""Spans wait so long for company unless they are a batch: to send one, whatever is in it, costs
as much as to encode 500 spans."""

REST_FACTOR = 49
"""The thread rests so many times as long as it computed: it takes at most a fiftieth of the
interpreter, in pieces. With more spans than that allows, the newest are dropped."""

CLOSE_GRACE_S = 1.0


FORK_WARNING = (
    b"sits: forked after the trace exporter had started; spans of this child are dropped. "
    b"Start workers with the spawn method.\n"
)


class Sending(Protocol):
    """What `sits_core.otlp_sender.Sender` does."""

    def send(self, request: bytes) -> str | None: ...
    def shutdown(self) -> None: ...


class SpanExporter:
    """Queue, thread and counters of the export. `offer` is a sink for `Tracer.add_sink`.

    A forked child has no exporter thread: there spans are dropped, and stderr says so.
    """

    def __init__(
        self, target: Target, resource: dict[str, Attribute], queue_spans: int = QUEUE_SPANS
    ) -> None:
        self._target, self._defaults = target, resource
        self._capacity = queue_spans
        self._queue: deque[Finished] = deque()
        self._queued = self._in_flight = 0
        self._counts = {"exported": 0, "dropped": 0, "failed": 0}
        self._lock = threading.Lock()
        self._open = True
        self._closing = threading.Event()
        self._sender: Sending | None = None
        self._not_ours: Sending | None = None
        self._may_warn = RateLimited()
        self._rested_at_s = 0.0
        self._thread = threading.Thread(target=self._run, name="otlp export", daemon=True)

    def start(self) -> None:
        self._thread.start()
        reference = weakref.WeakMethod(self._after_fork)

        def after_fork() -> None:
            if (method := reference()) is not None:
                method()

        os.register_at_fork(after_in_child=after_fork)

    def offer(self, finished: Finished) -> None:
        """Queue spans for export; never blocks, drops when full."""
        spans = count_of(finished)
        with self._lock:
            if self._open and self._queued + spans <= self._capacity:
                self._queue.append(finished)
                self._queued += spans
            else:
                self._counts["dropped"] += spans

    def close(self, grace_s: float = CLOSE_GRACE_S) -> None:
        """Export what is queued for at most `grace_s`; whatever the collector does, return."""
        with self._lock:
            self._open = False
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(grace_s)
        self._give_up()
        if self._sender is not None:
            self._sender.shutdown()

    def counts(self) -> dict[str, int]:
        """Spans by outcome, and `queued`: those without one yet. They add up to all offered."""
        with self._lock:
            return {**self._counts, "queued": self._queued + self._in_flight}

    def collect(self) -> Iterator[Metric]:
        """For Prometheus."""
        counts = self.counts()
        waiting = counts.pop("queued")
        spans = CounterMetricFamily("sits_spans", "Finished spans by outcome", labels=["outcome"])
        for outcome, count in counts.items():
            spans.add_metric([outcome], count)
        yield spans
        yield GaugeMetricFamily("sits_spans_queued", "Spans waiting for export", value=waiting)

    def _run(self) -> None:
        try:
            sender, resource = self._connect()
        except Exception as error:  # noqa: BLE001 - whatever the SDK finds wrong in a variable
            log.error("otlp.disabled", endpoint=self._target.url, reason=str(error))
            self._give_up()
            return
        while self._wait_for_spans() and (batch := self._take()):
            self._finish(self._send(sender, batch, resource))
            self._rest()

    def _wait_for_spans(self) -> bool:
        """Until there is a batch, or some spans that waited long enough. False = closed, and
        none is left."""
        began_s = time.monotonic()
        while self._queued < BATCH_SPANS and not self._closing.wait(POLL_S):
            if self._queued and time.monotonic() - began_s >= LINGER_S:
                return True
        return self._queued > 0

    def _connect(self) -> tuple[Sending, bytes]:
        from sits_core.otlp_sender import Sender, resource_attributes  # slow, see there

        self._sender = Sender(self._target)
        resource = encode_resource(resource_attributes(self._defaults))
        self._rested_at_s = time.thread_time()
        return self._sender, resource

    def _send(self, sender: Sending, batch: list[Finished], resource: bytes) -> str | None:
        """None when the collector took the batch, otherwise why not."""
        try:
            return sender.send(encode(spans_in(batch), resource, self._rest))
        except Exception as error:  # noqa: BLE001 - no span and no collector may end this thread
            return f"{type(error).__name__}: {error}"

    def _take(self) -> list[Finished]:
        batch: list[Finished] = []
        with self._lock:
            self._in_flight = 0
            while self._queue and self._in_flight < BATCH_SPANS:
                batch.append(self._queue.popleft())
                self._in_flight += count_of(batch[-1])
            self._queued -= self._in_flight
        return batch

    def _finish(self, refusal: str | None) -> None:
        with self._lock:
            # Zero when `close` gave up on this batch meanwhile, and counted it.
            spans, self._in_flight = self._in_flight, 0
            self._counts["exported" if refusal is None else "failed"] += spans
        if refusal is not None and spans and (held := self._may_warn("refusal")) is not None:
            log.warning(
                "otlp.export_failed",
                endpoint=self._target.url,
                reason=refusal,
                hint=self._target.hint,
                suppressed=held,
            )

    def _give_up(self) -> None:
        with self._lock:
            self._open = False
            self._counts["failed"] += self._in_flight
            self._counts["dropped"] += self._queued
            self._queued = self._in_flight = 0
            self._queue.clear()

    def _after_fork(self) -> None:
        """In a forked child: its copy of the lock may be held for ever, the thread is gone."""
        self._lock, self._open = threading.Lock(), False
        # The parent's channel: to close or to collect it here may wait for its lost threads.
        self._not_ours, self._sender = self._sender, None
        self._queue.clear()
        self._queued = 0
        # Not through the logger, whose lock may be held as well.
        os.write(2, FORK_WARNING)

    def _rest(self) -> None:
        """Leave the interpreter to the requests."""
        used_s = time.thread_time() - self._rested_at_s
        self._closing.wait(used_s * REST_FACTOR)
        self._rested_at_s = time.thread_time()
