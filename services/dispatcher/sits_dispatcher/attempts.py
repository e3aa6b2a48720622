"""Second attempts at a micro-batch: when one is worth it, and which of the two counts."""

from collections.abc import Iterable, Iterator
from typing import Final

from sits_dispatcher.job import Attempt, Job
from sits_protos.v1.link_pb2 import BatchHeader
from sits_scheduling.outcomes import Outcome
from sits_scheduling.retries import AGAIN, Budget, Hedging
from sits_scheduling.service_times import ServiceTimes

QUANTILE: Final = 0.95
"""A micro-batch that takes longer than this part of all is late."""


class Hedges:
    """Finds what is late, and says whether a second attempt is affordable.

    Rule (Dean and Barroso, The Tail at Scale, 2013): later than 95 % of the round trips to all
    executors of the same model and size, for at most `percent` of the micro-batches, and only
    to an executor that is idle. Known weakness: the round trips of the last some hundred
    micro-batches decide, so that a mesh that has just become slow is hedged until it is known
    to be slow; the budget bounds what that costs. Not thread-safe: the dispatcher's lock covers it.
    """

    def __init__(self, percent: float) -> None:
        self.on = percent > 0
        self._budget = Budget(ratio=percent / 100, per_s=0.0)
        self._hedging = Hedging(self._budget)
        self._trips = ServiceTimes()

    def __repr__(self) -> str:
        return f"<Hedges {self._budget!r}>" if self.on else "<Hedges off>"

    def sent(self, job: Job) -> None:
        """A micro-batch left. One that moves on has paid before."""
        if self.on and job.attempt is Attempt.FIRST and not job.moves:
            self._budget.request()

    def returned(self, job: Job, outcome: Outcome, now: int) -> None:
        """Its result is here. What was cut short does not tell how long it takes."""
        if self.on and outcome is Outcome.SUCCESS and not job.beaten:
            self._trips.observe(job.model, job.header.rows, "", now - job.sent_ns)

    def late(self, in_flight: Iterable[Job], now: int) -> Iterator[Job]:
        """Those that could be tried a second time."""
        for job in in_flight:
            if job.attempt is not Attempt.FIRST or job.twin is not None or job.beaten:
                continue
            if job.given_up:
                continue
            usual_ns = self._trips.quantile_ns(job.model, job.header.rows, QUANTILE)
            if usual_ns and now >= self._hedging.due_ns(job.sent_ns, 0.0, usual_ns):
                yield job

    def allow(self, job: Job, idle: int, now: int) -> bool:
        """Pay for a second attempt at `job`, which `idle` other executors could take up."""
        expected_ns = self._trips.expected_ns(job.model, job.header.rows)
        return self._hedging.allow(now, job.header.latest_deadline_unix_ns, expected_ns, idle)


def copied(job: Job, key: int, attempt: Attempt) -> Job:
    """A second attempt under a number of its own."""
    header = BatchHeader()
    header.CopyFrom(job.header)
    header.batch_id = job.batch_id
    return Job(
        key, job.front, header, job.body, job.first_request,
        received_ns=job.received_ns, moves=job.moves, cancelled={*job.cancelled}, attempt=attempt,
    )  # fmt: skip


def pair(job: Job, second: Job) -> None:
    """Both are under way."""
    job.twin, second.twin = second, job


def counts(job: Job, outcome: Outcome) -> bool:
    """Whether the front gets this end of an attempt; if so, the other one is beaten.

    A fault leaves the answer to the other attempt. A probe answers only when it succeeds, and
    nobody waits for one.
    """
    other, job.twin = job.twin, None
    if job.beaten:
        return False
    if other is None:
        return True
    other.twin = None
    waits = outcome in AGAIN and other.attempt is not Attempt.PROBE
    refused = outcome is not Outcome.SUCCESS and job.attempt is Attempt.PROBE
    other.beaten = not (waits or refused)
    return other.beaten
