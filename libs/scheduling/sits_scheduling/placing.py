"""Places one batch: strategy in force, predicted costs, reservation. What the dispatcher and
the simulator call."""

import random
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from sits_scheduling.affinity import Place
from sits_scheduling.batching import CloseReason
from sits_scheduling.candidates import Candidates, ExecutorTable, Reservation
from sits_scheduling.explain import NO_STEP, DecisionLog, PathStep
from sits_scheduling.paths import Later, costs_of
from sits_scheduling.placements import Decision
from sits_scheduling.service_times import ServiceTimes, bucket_of
from sits_scheduling.shadow import Shadow
from sits_scheduling.strategies import Strategy
from sits_scheduling.switchboard import Switchboard

EXACT_UP_TO: Final = 512
"""Executors of a model that a decision compares one by one; beyond, it takes a shortlist."""
SHORTLIST: Final = 64
LEARN_EVERY_NS: Final = 5_000_000
"""Of the run times of a model on an executor, one in that time is learnt of each bucket of sizes:
more would cost a third of what is done after an answer, and teach nothing."""
AHEAD_UP_TO: Final = 128
"""Executors among which all ways through the later steps of a pipeline are compared."""


class Batch(NamedTuple):
    """What is placed. `model` is the table's key; `place` is where the payload lies; `later` are
    the steps of its pipeline that follow. The rest is for explanations."""

    model: str
    rows: int = 1
    payload_bytes: int = 0
    place: Place = Place("")
    request_ids: tuple[str, ...] = ()
    closed_by: CloseReason | None = None
    path: PathStep = NO_STEP
    later: tuple[Later, ...] = ()


class Placed(NamedTuple):
    """Where it went, by which strategy, what spoke for it (nothing, where nobody else was
    there), and the load that is held for it."""

    strategy: str
    scores: Mapping[str, float]
    reservation: Reservation

    @property
    def executor(self) -> str:
        return self.reservation.executor


class Placing:
    """Puts the parts together: table, run times, strategies; a log and a shadow if given."""

    def __init__(
        self,
        table: ExecutorTable,
        times: ServiceTimes,
        strategies: Switchboard,
        rng: random.Random,
        log: DecisionLog | None = None,
    ) -> None:
        self.table, self.times, self.strategies, self.log = table, times, strategies, log
        self.shadow: Shadow | None = None
        self._rng = rng
        self._learn_again_ns: dict[tuple[str, str, int], int] = {}

    def place(self, batch: Batch, now_ns: int = 0, excluded: Collection[str] = ()) -> Placed | None:
        """Reserve an executor; None when none but the excluded has room."""
        strategy = self.strategies.strategy(batch.model)
        if self.shadow is None and not excluded:
            only = self.table.only(batch.model)
            if only is not None:
                return self._place_only(strategy, batch, only, now_ns)
        decision = self.decide(strategy, batch, now_ns, excluded)
        if decision is None:
            return None
        if self.shadow is not None:
            self.shadow.observe(decision)
        if self.log is not None:
            ids, closed = batch.request_ids, batch.closed_by
            self.log.write(
                ids, batch.model, strategy.name, decision, self.table, now_ns, closed,
                batch.path,
            )  # fmt: skip
        return Placed(strategy.name, decision.scores, self._reserve(batch, decision, now_ns))

    def set_shadow(self, name: str) -> None:
        """Let a known strategy decide beside the one in force; "" ends it."""
        self.shadow = Shadow(self.strategies.another(name)) if name else None

    def decide(
        self, strategy: Strategy, batch: Batch, now_ns: int = 0, excluded: Collection[str] = ()
    ) -> Decision | None:
        """The choice alone. Large tables are sampled first and seen whole only when the
        sample has no room, which is when most of them are full."""
        looks_ahead = bool(batch.later) and getattr(strategy.placement, "looks_ahead", False)
        whole = strategy.placement.whole or self.table.serving(batch.model) <= EXACT_UP_TO
        if not whole:
            decision = strategy.place(self._view(batch, now_ns, excluded, sample=True))
            if decision is not None:
                return decision
        seen = self._view(batch, now_ns, excluded, sample=False)
        if looks_ahead and len(seen) <= AHEAD_UP_TO:
            seen.ahead_us = costs_of(batch.later, self.table, self.times, now_ns)
        return strategy.place(seen)

    def finished(self, batch: Batch, reservation: Reservation, ran_ns: float, now_ns: int) -> None:
        """Its answer came: release the load, and learn now and then how long it ran (0 = it did
        not)."""
        reservation.release(now_ns)
        executor = reservation.executor
        if ran_ns > 0 and self._worth_learning(executor, batch, now_ns):
            self.times.observe(batch.model, batch.rows, executor, ran_ns)
            self.table.set_speed(executor, batch.model, self.times.speed(batch.model, executor))

    def _worth_learning(self, executor: str, batch: Batch, now_ns: int) -> bool:
        """Batches that come in a rhythm would otherwise teach one of their sizes only."""
        key = executor, batch.model, bucket_of(batch.rows)
        if now_ns < self._learn_again_ns.get(key, now_ns):
            return False
        self._learn_again_ns[key] = now_ns + LEARN_EVERY_NS
        return True

    def lost(self, executor_id: str) -> None:
        """An executor left: its load, and what was learnt of it, go."""
        self.table.remove(executor_id)
        self.forget(executor_id)

    def forget(self, executor_id: str) -> None:
        """What was learnt of it."""
        self.times.forget(executor_id)
        gone = [key for key in self._learn_again_ns if key[0] == executor_id]
        for key in gone:
            del self._learn_again_ns[key]

    def _place_only(
        self, strategy: Strategy, batch: Batch, position: int, now_ns: int
    ) -> Placed | None:
        """The one executor that serves the model, if it has room: a comparison of one costs
        several times what is left of the work."""
        if not self.table.has_room(position, batch.model):
            return None
        if self.log is not None:
            self.log.write_only(
                batch.request_ids, batch.model, strategy.name, self.table.executor_at(position),
                now_ns, batch.closed_by, batch.path,
            )  # fmt: skip
        cost_ns = self.times.expected_ns(batch.model, batch.rows)
        cost_ns *= self.table.speed(position, batch.model)
        reservation = self.table.reserve(position, batch.model, batch.rows, cost_ns, now_ns)
        return Placed(strategy.name, {}, reservation)

    def _reserve(self, batch: Batch, decision: Decision, now_ns: int) -> Reservation:
        seen = decision.candidates
        cost_ns = seen.service_ns * float(seen.speed[decision.at])
        return self.table.reserve(decision.choice, batch.model, batch.rows, cost_ns, now_ns)

    def _view(
        self, batch: Batch, now_ns: int, excluded: Collection[str], *, sample: bool
    ) -> Candidates:
        service_ns = self.times.expected_ns(batch.model, batch.rows)
        if sample:
            return self.table.shortlist(
                batch.model, batch.place, self._rng, SHORTLIST, excluded, now_ns, service_ns,
                batch.payload_bytes,
            )  # fmt: skip
        return self.table.candidates(
            batch.model, batch.place, excluded, now_ns, service_ns, batch.payload_bytes
        )
