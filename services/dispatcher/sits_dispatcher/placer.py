"""Picks an executor for a micro-batch: the strategy in force over the table of executors."""

import random
from collections.abc import Collection, Mapping
from typing import NamedTuple

from sits_core.errors import NotFound
from sits_dispatcher.job import Job
from sits_protos.v1.link_pb2 import StageTimes
from sits_scheduling.batching import CloseReason
from sits_scheduling.candidates import ExecutorTable
from sits_scheduling.explain import DecisionLog, Explanation, PathStep
from sits_scheduling.orders import Order
from sits_scheduling.paths import Later
from sits_scheduling.placing import Batch, Placing
from sits_scheduling.service_times import ServiceTimes
from sits_scheduling.shadow import ShadowReport
from sits_scheduling.strategies import Factory
from sits_scheduling.switchboard import Switchboard

CLOSED_BY = {reason.value: reason for reason in CloseReason}


class Placed(NamedTuple):
    """Which executor, by which strategy, and what spoke for it."""

    executor: str
    strategy: str
    scores: Mapping[str, float]


class Placer:
    """Translates between jobs and `sits_scheduling`. Not thread-safe: the dispatcher's lock
    covers it."""

    def __init__(
        self, table: ExecutorTable, default: str, rng: random.Random,
        custom: Mapping[str, Factory] | None = None,
    ) -> None:  # fmt: skip
        self._switchboard = Switchboard(default, rng, custom)
        self._known(default)
        self._log = DecisionLog()
        self._placing = Placing(table, ServiceTimes(), self._switchboard, rng, self._log)

    @property
    def default(self) -> str:
        return self._switchboard.default

    @property
    def by_model(self) -> Mapping[str, str]:
        return self._switchboard.by_model

    def knows(self, name: str) -> bool:
        return self._switchboard.knows(name)

    def names(self) -> list[str]:
        return self._switchboard.names()

    def switch(self, strategy: str, model: str = "") -> str:
        """Use `strategy` from the next batch on, for one model or by default ("").

        Returns the previous one. Raises `NotFound` for an unknown name.
        """
        self._known(strategy)
        return self._switchboard.switch(strategy, model)

    def order(self, model: str) -> Order:
        """Which waiting micro-batch of `model`, a key of the table, goes first."""
        return self._switchboard.strategy(model).order

    def place(self, job: Job, now: int, excluded: Collection[str] = ()) -> Placed | None:
        """Reserve an executor for `job`; None when none but the excluded has room."""
        if job.placing is None:
            job.placing = _batch(job)
        placed = self._placing.place(job.placing, now, excluded)
        if placed is None:
            return None
        job.reservation = placed.reservation
        return Placed(placed.executor, placed.strategy, placed.scores)

    def on_path(self, job: Job, later: tuple[Later, ...], path: PathStep) -> None:
        """`job` is a step of a pipeline; `later` ones follow it."""
        job.placing = _batch(job)._replace(later=later, path=path)

    def row_ns(self, model: str, rows: int) -> float:
        """What a row of `model`, a key of the table, costs in a batch of `rows`; 0 = not known."""
        return self._placing.times.row_ns(model, rows)

    def finished(self, job: Job, times: StageTimes, now: int) -> None:
        """Its result came: release the load, learn how long the executor worked on it."""
        if job.reservation is not None and job.placing is not None:
            ran_ns = times.executor_sent - times.input_started if times.input_started else 0
            self._placing.finished(job.placing, job.reservation, ran_ns, now)

    def forget(self, executor: str) -> None:
        """It left, and does not come back under this id."""
        self._placing.forget(executor)

    def set_shadow(self, strategy: str) -> ShadowReport | None:
        """Let `strategy` decide beside the one in force; "" ends it. Returns what the one
        before has seen. Raises `NotFound` for an unknown name."""
        if strategy:
            self._known(strategy)
        before = self.shadow()
        self._placing.set_shadow(strategy)
        return before

    def shadow(self) -> ShadowReport | None:
        return self._placing.shadow.report() if self._placing.shadow else None

    def why(self) -> str:
        """The newest decision in a line."""
        return self._log.latest(1)[0].compact()

    def explain(self, request_id: str, limit: int) -> list[Explanation]:
        """The last decision about a request, those about all steps of a pipeline, or the newest
        decisions when no id is given."""
        if not request_id:
            return self._log.latest(limit)
        found = self._log.path(request_id)
        if not found:
            raise NotFound(
                f"no decision about request '{request_id}' is remembered: the last "
                f"{self._log.capacity:,} are, of requests that carry an id"
            )
        return found

    def _known(self, name: str) -> None:
        if not self.knows(name):
            names = ", ".join(self.names())
            raise NotFound(f"unknown strategy '{name}', expected one of {names}")


def _batch(job: Job) -> Batch:
    header = job.header
    return Batch(
        job.model,
        header.rows,
        header.payload_bytes,
        job.place,
        tuple(header.request_ids),
        CLOSED_BY.get(header.close_reason),
    )
