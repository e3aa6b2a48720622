"""Requests that are not answered yet: which wait, which batches may leave, whose time is up."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from sits_core.clock import now_ns
from sits_core.errors import DeadlineExceeded, SitsError
from sits_preprocess.batcher import QUEUE_FULL, ModelBatcher, Ran, max_queue_of, policy_of
from sits_preprocess.catalog import Catalog, Model
from sits_preprocess.engine_metrics import EngineMetrics
from sits_preprocess.expiry import Expiry
from sits_preprocess.gates import Gates, Look, Refused, refused
from sits_preprocess.outbox import Outbox, Outgoing
from sits_preprocess.producers import Producers
from sits_preprocess.request import ModelKey, Request
from sits_preprocess.settings import PreprocessSettings
from sits_scheduling.batching import BatchPolicy
from sits_scheduling.tenants import Tenants, Tier

REFUSING_NS = 100_000_000
"""After a refusal requests are looked at before they are read for so long."""

TOO_LATE = DeadlineExceeded("Request timeout expired", reason="DEADLINE_EXCEEDED_IN_QUEUE")


class Queues:
    """Decisions only. Callers hold the engine's lock.

    `wake_at` asks for a call of `pump` for a model at a moment, Unix ns.
    """

    def __init__(
        self,
        settings: PreprocessSettings,
        catalog: Catalog,
        outbox: Outbox,
        metrics: EngineMetrics,
        wake_at: Callable[[int, ModelKey], object],
        tenants: Tenants,
    ) -> None:
        self._settings, self._catalog, self._tenants = settings, catalog, tenants
        self._outbox, self._metrics, self._wake_at = outbox, metrics, wake_at
        self._gates = Gates(tenants) if settings.preprocess_admission else None
        self._shed: frozenset[Tier] = frozenset()
        self._judges_all = self._gates is not None and self._gates.quotas
        self._batchers: dict[ModelKey, ModelBatcher] = {}
        self._rate = settings.preprocess_producer_rate
        self._producers: dict[ModelKey, Producers] = {}
        self.open: set[Request] = set()
        self.expiry = Expiry()
        self.refusing_until_ns = 0

    def __repr__(self) -> str:
        return f"<Queues {len(self.open)} open, {self.waiting()} waiting>"

    def waiting(self) -> int:
        """Requests not sent yet."""
        return sum(map(len, self._batchers.values()))

    # in

    def add(self, request: Request, now: int) -> SitsError | None:
        """Queue a request, or say why not."""
        request.queued_ns = now
        if request.deadline is not None and request.deadline.unix_ns <= now:
            return TOO_LATE
        try:
            batcher = self._batcher((request.model, request.version))
        except SitsError as error:  # it went since it was looked up
            return error
        refusal = self._why_not(batcher, request, now)
        if refusal is not None:
            return refusal
        batcher.add(request)
        if self._producers:
            self._producers[request.model, request.version].put(request)
        self.open.add(request)
        if request.deadline is not None:
            self.expiry.add(request)
        return None

    def foresee(self, request: Request, now: int) -> SitsError | None:
        """Why a request would be refused of which the rows are not known yet."""
        batcher = self._batchers.get((request.model, request.version))
        if batcher is None:
            return None
        request.queued_ns = now
        return self._why_not(batcher, request, now, take=False)

    def look(self, request: Request, now: int) -> Look:
        """The same, and what it says of others that came together with it."""
        batcher = self._batchers.get((request.model, request.version))
        if batcher is None:
            return Look(None)
        error = self.foresee(request, now)
        if self._producers or (batcher.gate is not None and not batcher.gate.unlimited(request)):
            return Look(error, each=True)
        room = self._outbox.instances((request.model, request.version))
        return Look(error, batcher.needs(request, room), batcher.places)

    def turned_away(self, error: SitsError, requests: int, now: int) -> None:
        """So many more were refused for what `look` had said."""
        self.refusing_until_ns = now + REFUSING_NS
        self._metrics.turned_away(error.reason, requests)

    def _why_not(
        self, batcher: ModelBatcher, request: Request, now: int, *, take: bool = True
    ) -> SitsError | None:
        """Most requests have a deadline so far away that no prediction is needed."""
        refusal: SitsError | None = None
        if batcher.full:
            refusal = QUEUE_FULL
        elif self._producers and (fast := self._too_fast(batcher, request, now)):
            refusal = fast
        elif self._judges_all or 0 < request.deadline_ns < self._sure_ns(batcher, request, now):
            refusal = self._judge(batcher, request, now, take=take)
        if refusal is not None:
            self.refusing_until_ns = now + REFUSING_NS
        return refusal

    def _too_fast(self, batcher: ModelBatcher, request: Request, now: int) -> SitsError | None:
        producers = self._producers[request.model, request.version]
        refusal = producers.judge(request, len(batcher), now)
        if refusal is None:
            return None
        self._metrics.refused(refusal.reason)
        return refused(refusal)

    # out

    def pump(self, models: Iterable[ModelKey], now: int) -> list[Outgoing]:
        """Close the batches that may leave now, and arrange to look again in time."""
        outgoing: list[Outgoing] = []
        for model in models:
            batcher = self._batchers[model]
            while len(batcher):
                room = self._outbox.capacity(model, batcher)
                batch = batcher.next_batch(now, room)
                if batch is None:
                    self._wake_later(model, batcher.next_wakeup_ns(now, room), now)
                    break
                self._metrics.closed(batch.reason, len(batch.items), batch.rows)
                outgoing.append(self._outbox.add(model, batch, now, batcher.gate))
        return outgoing

    def pump_all(self, now: int) -> list[Outgoing]:
        return self._outbox.resend() + self.pump(self._batchers, now)

    def ran(self, model: ModelKey, part: Sequence[Request], ran: Ran, now: int) -> None:
        """These requests, which ran together, are back."""
        self._batchers[model].learn(part, ran, now)

    def settle(self, requests: Sequence[Request]) -> list[bool]:
        """Their answers are here; which of them somebody still waited for."""
        waited_for = [not request.answered for request in requests]
        for request in requests:
            request.answered = True
            if request.deadline is not None:
                self.expiry.discard(request)
        self.open.difference_update(requests)
        return waited_for

    def withdraw(self, requests: Iterable[Request]) -> list[Request]:
        """Take out requests that get their answer now; those that were open."""
        found = [request for request in requests if request in self.open]
        for request in found:
            batcher = self._batchers[request.model, request.version]
            batcher.remove(request)
            if request.judged_wait_ns and not request.batch_id and batcher.gate is not None:
                batcher.gate.gave_up(request, now_ns())
        self.settle(found)
        return found

    def unserved(self, now: int) -> list[Request]:
        """Take out what waited too long for a dispatcher or executor to come back."""
        patience_ns = int(self._settings.preprocess_wait_s * 1e9)
        found: list[Request] = []
        for model, batcher in self._batchers.items():
            if self._outbox.serves(model):
                batcher.unserved_since_ns = 0
                continue
            batcher.unserved_since_ns = batcher.unserved_since_ns or now
            if now - batcher.unserved_since_ns > patience_ns:
                found += batcher.drop_all() + self._outbox.drop_stranded(model)
        return found

    # models

    def follow(self) -> None:
        """Models may have been reloaded with other batching rules, or dispatchers take smaller
        batches, or want tiers refused."""
        self._shed = self._outbox.shed()
        self._judges_all = self._gates is not None and (self._gates.quotas or bool(self._shed))
        for model in self._catalog.models():
            batcher = self._batchers.get((model.name, model.version))
            if batcher is not None:
                batcher.set_policy(self._policy(model), max_queue_of(model, self._settings))
                if batcher.gate is not None:
                    batcher.gate.shed = self._shed

    def _batcher(self, model: ModelKey) -> ModelBatcher:
        batcher = self._batchers.get(model)
        if batcher is None:
            known, settings = self._catalog.find(*model), self._settings
            gate = self._gates.new(model, self._shed) if self._gates is not None else None
            batcher = ModelBatcher(
                self._policy(known), max_queue_of(known, settings), self._tenants, gate
            )
            self._batchers[model] = batcher
            if self._rate != "off":
                limit = max_queue_of(known, settings)
                self._producers[model] = Producers(self._rate, self._tenants, limit)
        return batcher

    def _policy(self, model: Model) -> BatchPolicy:
        policy = policy_of(model, self._settings)
        limit = self._outbox.row_limit((model.name, model.version))
        if not limit or not policy.max_rows:
            return policy
        return replace(policy, max_rows=min(limit, policy.max_rows))

    def _sure_ns(self, batcher: ModelBatcher, request: Request, now: int) -> int:
        """Deadlines from this moment on are met for sure, as far as can be predicted. Asked
        once for all requests that came together."""
        if batcher.sure_asked_ns != now:
            room = self._outbox.instances((request.model, request.version))
            batcher.sure_asked_ns, batcher.sure_ns = now, batcher.sure_after(room, now)
        return batcher.sure_ns

    def _judge(
        self, batcher: ModelBatcher, request: Request, now: int, *, take: bool
    ) -> SitsError | None:
        known = batcher.refused
        if known is not None and known.holds_for(request, now):
            self._metrics.refused(known.reason)
            return known.error
        room = self._outbox.instances((request.model, request.version))
        refusal = batcher.judge(request, room, now, take=take)
        if refusal is None:
            return None
        self._metrics.refused(refusal.reason)
        error = refused(refusal)
        batcher.refused = Refused(now, request.tenant, request.deadline_ns, refusal.reason, error)
        return error

    def _wake_later(self, model: ModelKey, wake_ns: int | None, now: int) -> None:
        batcher = self._batchers[model]
        if wake_ns is not None and not now < batcher.wake_ns <= wake_ns:
            batcher.wake_ns = wake_ns
            self._wake_at(wake_ns, model)
