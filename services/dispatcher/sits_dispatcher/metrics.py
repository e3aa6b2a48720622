"""Metrics of the dispatcher."""

from functools import lru_cache

from prometheus_client import CollectorRegistry, Counter, Gauge

from sits_core.metrics import BoundedLabel, PayloadCopies, PlainHistogram
from sits_dispatcher.job import Attempt, Job
from sits_dispatcher.placer import Placed
from sits_protos.v1.link_pb2 import ResultHeader
from sits_scheduling.governance import Event, Plan
from sits_scheduling.jitter import JitterState
from sits_scheduling.signals import SIGNALS, Sample

_SECONDS = (1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 5e-3, 2.5e-2, 0.1, 0.5, 2.5)


_REMEMBERED = 1024


class Metrics:
    """Label values are bounded; executors that come and go share the overflow in the end."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._model, self._instance = BoundedLabel(), BoundedLabel()
        self._copies = PayloadCopies(registry)
        # Finding a series by its labels costs several times what counting does.
        self._of_model = lru_cache(_REMEMBERED)(self._find_model)
        self._of_instance = lru_cache(_REMEMBERED)(self._find_instance)
        self._placed = Counter(
            "sits_dispatcher_batches",
            "Micro-batches sent",
            ["model", "strategy"],
            registry=registry,
        )
        self._rows = Counter("sits_dispatcher_rows", "Rows sent", ["model"], registry=registry)
        self._returned = Counter(
            "sits_dispatcher_results",
            "Results by executor",
            ["instance", "outcome"],
            registry=registry,
        )
        self._moves = Counter(
            "sits_dispatcher_moves", "Micro-batches moved off a lost executor", registry=registry
        )
        self._twice = Counter(
            "sits_dispatcher_second_attempts",
            "Micro-batches sent to a second executor, by why: hedge, probe",
            ["attempt"],
            registry=registry,
        )
        self._won = Counter(
            "sits_dispatcher_second_attempts_decided",
            "Of those with two attempts, which one answered: first, hedge, probe",
            ["attempt"],
            registry=registry,
        )
        self._replaced = Counter(
            "sits_dispatcher_replaced",
            "Waiting micro-batches taken back from an executor and placed anew",
            registry=registry,
        )
        self._steps = Counter(
            "sits_governance_steps", "Steps up and down, by the level after them", ["level"],
            registry=registry,
        )  # fmt: skip
        self._jitter = Gauge(
            "sits_dispatcher_jitter_ms",
            "Standard deviation of the way to an executor and back",
            ["instance"],
            registry=registry,
        )
        self._send_rate = Gauge(
            "sits_dispatcher_send_rate",
            "Rate at which an executor is sent to, of its peak; 1 = at will or evenly at the peak",
            ["instance"],
            registry=registry,
        )
        self._refused = Counter(
            "sits_dispatcher_refused", "Micro-batches refused", ["reason"], registry=registry
        )
        self._dropped = Counter(
            "sits_dispatcher_dropped", "Messages nobody waited for", ["reason"], registry=registry
        )
        self._breaker = Gauge(
            "sits_dispatcher_breaker",
            "Breaker of an executor: 0 closed, 1 half open, 2 open",
            ["instance"],
            registry=registry,
        )
        self._pending = Gauge(
            "sits_dispatcher_pending", "Micro-batches waiting for an executor", registry=registry
        )
        self._decision = PlainHistogram(
            "sits_dispatcher_wait_seconds", "From receiving a batch to sending it",
            _SECONDS, registry,
        )  # fmt: skip
        self.topology_age = Gauge(
            "sits_topology_age_seconds", "Age of the weights in use, -1 = none", registry=registry
        )
        self.redis_age = Gauge(
            "sits_redis_age_seconds", "Since Redis last answered", registry=registry
        )
        self._level = Gauge(
            "sits_governance_level",
            "0 normal, 1 scale out, 2 re-place work, 3 degrade",
            registry=registry,
        )
        self._scale = Gauge(
            "sits_scale_factor",
            "Capacity wanted over capacity there is, for an autoscaler",
            registry=registry,
        )
        self._scale.set(1.0)
        self._shed = Gauge("sits_governance_shed_tiers", "Tiers refused", registry=registry)
        self._signal = Gauge(
            "sits_governance_signal", "Signals of governance", ["signal"], registry=registry
        )
        self.executors = Gauge("sits_dispatcher_executors", "Linked executors", registry=registry)

    def placed(self, placed: Placed, job: Job) -> None:
        header = job.header
        self._pass_on(header.inline_bytes, header.payload_bytes, header.requests)
        batches, rows = self._of_model(job.header.model, placed.strategy)
        batches.inc()
        rows.inc(job.header.rows)
        if job.attempt is Attempt.FIRST:
            self._decision.observe((job.sent_ns - job.received_ns) / 1e9)
        if job.moves:
            self._moves.inc()

    def returned(self, instance: str, header: ResultHeader, *, failed: bool) -> None:
        self._pass_on(header.inline_bytes, header.payload_bytes, header.requests)
        self._of_instance(self._instance(instance), "error" if failed else "ok").inc()

    def tried_twice(self, attempt: str) -> None:
        self._twice.labels(attempt).inc()

    def won(self, attempt: str) -> None:
        self._won.labels(attempt).inc()

    def refused(self, reason: str) -> None:
        self._refused.labels(reason).inc()

    def dropped(self, reason: str) -> None:
        self._dropped.labels(reason).inc()

    def breaker(self, instance: str, state: int) -> None:
        self._breaker.labels(self._instance(instance)).set(state)

    def governed(self, plan: Plan, sample: Sample) -> None:
        self._level.set(plan.level)
        self._scale.set(plan.scale_factor)
        self._shed.set(len(plan.shed))
        for name, value in SIGNALS.items():
            self._signal.labels(name).set(value(sample))

    def stepped(self, event: Event) -> None:
        self._steps.labels(event.after.name.lower()).inc()

    def replaced(self) -> None:
        self._replaced.inc()

    def jitter(self, instance: str, state: JitterState) -> None:
        name = self._instance(instance)
        self._jitter.labels(name).set(state.stdev_ms)
        self._send_rate.labels(name).set(state.rate)

    def pending(self, count: int) -> None:
        self._pending.set(count)

    def _find_model(self, name: str, strategy: str) -> tuple[Counter, Counter]:
        model = self._model(name)
        return self._placed.labels(model, strategy), self._rows.labels(model)

    def _find_instance(self, instance: str, outcome: str) -> Counter:
        return self._returned.labels(instance, outcome)

    def _pass_on(self, inline_bytes: int, payload_bytes: int, requests: int) -> None:
        """Out of one link, behind a new head, into another link."""
        self._copies.count("forward", 3 * inline_bytes, payload_bytes, requests)
