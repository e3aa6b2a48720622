"""Keeps work away from executors that fail: breakers, outliers, and retries within a budget."""

from collections.abc import Collection

import structlog

from sits_dispatcher.job import Attempt, Job
from sits_dispatcher.metrics import Metrics
from sits_protos.v1.link_pb2 import ResultHeader
from sits_scheduling.breaker import Breakers, Permit
from sits_scheduling.outcomes import Outcome, classify
from sits_scheduling.outliers import Outliers
from sits_scheduling.retries import Budget, Retries

log = structlog.get_logger()

LOOK_NS = 2_000_000_000
FAULTY_PART = 0.1
"""The part of faults from which on an executor is not worth a try while all are overloaded."""


class Guard:
    """What is known of each executor's health, learnt from how its micro-batches end.

    A result whose requests failed one by one speaks for the executor, not against it: bad
    input is the caller's. Not thread-safe: the dispatcher's lock covers it.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._breakers, self._outliers = Breakers(), Outliers()
        self._budget = Budget()
        self._retries = Retries(self._budget)
        self._permits: dict[int, Permit] = {}
        self._metrics = metrics
        self._looked_ns = 0
        self._on_bad_devices: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return f"<Guard {self._breakers!r}, {len(self._permits)} permits out>"

    def excluded(self, now: int) -> Collection[str]:
        """Executors that should get nothing now. One on probation gets copies (`due`), so that
        nobody waits for it."""
        tripped, ejected = self._breakers.tripped(), self._outliers.ejected(now)
        if not tripped and not ejected:
            return self._on_bad_devices
        return {*tripped, *ejected, *self._on_bad_devices}

    def on_bad_devices(self, executors: Collection[str]) -> None:
        """From now on these, and no others, run on devices that topology says are BAD."""
        now_bad = frozenset(executors)
        for executor in now_bad - self._on_bad_devices:
            log.warning("executor.bad_device", executor=executor)
        for executor in self._on_bad_devices - now_bad:
            log.info("executor.device_good_again", executor=executor)
        self._on_bad_devices = now_bad

    def due(self, now: int) -> Collection[str]:
        """Executors that want a probe now."""
        return self._breakers.due(now)

    def sent(self, job: Job, now: int) -> None:
        """`job` went to its executor."""
        if job.moves == 0 and job.attempt is Attempt.FIRST:
            self._budget.request()
        permit = self._breakers.permit(job.executor, now)
        if permit is not None:
            self._permits[job.key] = permit

    def ended(self, job: Job, header: ResultHeader, now: int) -> Outcome:
        """Its result came; call before the load is released."""
        outcome = _outcome(header)
        self._end(job, outcome, now)
        self._outliers.observe(job.executor, outcome)
        return outcome

    def lost(self, job: Job, now: int) -> None:
        """Its executor went away with it. That one does not come back under this id."""
        self._end(job, Outcome.FAULT, now)

    def forget(self, executor: str) -> None:
        self._breakers.forget(executor)
        self._outliers.forget(executor)

    def may_retry(
        self, job: Job, outcome: Outcome, now: int, most_moves: int, run_ns: float
    ) -> bool:
        """Whether a failed micro-batch may be tried on another executor, for `run_ns`."""
        if job.moves >= most_moves:
            return False
        deadline_ns = job.header.latest_deadline_unix_ns
        return self._retries.allow(outcome, job.moves + 1, now, deadline_ns, run_ns)

    def break_circuits(self, now: int) -> None:
        """Governance degrades: do not wait for five faults in a row where faults are frequent."""
        for executor in self._outliers.faulty(FAULTY_PART):
            if self._breakers.trip(executor, now):
                log.warning("executor.tripped", executor=executor, cause="governance degrades")

    def look(self, now: int) -> None:
        """Now and then take out who is worse than the rest, and refresh the metric."""
        if now - self._looked_ns < LOOK_NS:
            return
        self._looked_ns = now
        for ejection in self._outliers.evaluate(now):
            log.warning("executor.ejected", executor=ejection.executor, cause=ejection.cause)
        for executor, seen in self._breakers.snapshots().items():
            self._metrics.breaker(executor, seen.state.value)

    def _end(self, job: Job, outcome: Outcome, now: int) -> None:
        permit = self._permits.pop(job.key, None)
        if permit is not None:
            permit.end(outcome, now)


def _outcome(header: ResultHeader) -> Outcome:
    if not header.HasField("error"):
        return Outcome.SUCCESS
    return classify(header.error.code, header.error.reason)
