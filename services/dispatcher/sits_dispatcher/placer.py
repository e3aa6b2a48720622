"""Picks an executor for a micro-batch: the strategy in force over the table of executors."""

import random
from collections.abc import Collection, Mapping
from typing import NamedTuple

from sits_core.errors import NotFound
from sits_dispatcher.job import Job
from sits_scheduling.candidates import ExecutorTable
from sits_scheduling.strategies import STRATEGIES, Strategy


class Placed(NamedTuple):
    """Which executor, by which strategy, and what spoke for it."""

    executor: str
    strategy: str
    scores: Mapping[str, float]


class Placer:
    """Owns the strategies. Switching replaces a name, so it takes no time and loses nothing.

    Not thread-safe: the dispatcher's lock covers it.
    """

    def __init__(self, table: ExecutorTable, default: str, rng: random.Random) -> None:
        self._table, self._rng = table, rng
        self._made: dict[str, Strategy] = {}
        self._default = self._known(default)
        self._by_model: dict[str, str] = {}

    @property
    def default(self) -> str:
        return self._default

    @property
    def by_model(self) -> Mapping[str, str]:
        return self._by_model

    def switch(self, strategy: str, model: str = "") -> str:
        """Use `strategy` from the next batch on, for one model or by default ("").

        Returns the previous one. Raises `NotFound` for an unknown name.
        """
        name = self._known(strategy)
        if model:
            previous = self._by_model.get(model, self._default)
            self._by_model[model] = name
        else:
            previous, self._default = self._default, name
        return previous

    def place(self, job: Job, excluded: Collection[str] = ()) -> Placed | None:
        """Reserve an executor for `job`; None when none but the excluded has room."""
        strategy = self._strategy(self._by_model.get(job.header.model, self._default))
        candidates = self._table.candidates(job.model, job.place, excluded)
        decision = strategy.place(candidates)
        if decision is None:
            return None
        job.reservation = self._table.reserve(decision.choice, job.model, job.header.rows)
        return Placed(job.reservation.executor, strategy.name, decision.scores)

    def _strategy(self, name: str) -> Strategy:
        made = self._made.get(name)
        if made is None:
            made = self._made[name] = STRATEGIES[name](self._rng)
        return made

    @staticmethod
    def _known(name: str) -> str:
        if name not in STRATEGIES:
            raise NotFound(f"unknown strategy '{name}', expected one of {', '.join(STRATEGIES)}")
        return name
