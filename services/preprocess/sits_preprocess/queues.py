"""Requests that are not answered yet: which wait, which batches may leave, whose time is up."""

from collections.abc import Callable, Iterable, Sequence

from sits_core.errors import DeadlineExceeded, SitsError
from sits_preprocess.batcher import ModelBatcher, max_queue_of, policy_of
from sits_preprocess.catalog import Catalog
from sits_preprocess.engine_metrics import EngineMetrics
from sits_preprocess.expiry import Expiry
from sits_preprocess.outbox import Outbox, Outgoing
from sits_preprocess.request import ModelKey, Request
from sits_preprocess.settings import PreprocessSettings
from sits_scheduling.tenants import Tenants

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
        self._batchers: dict[ModelKey, ModelBatcher] = {}
        self.open: set[Request] = set()
        self.expiry = Expiry()

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
        full = batcher.add(request)
        if full is not None:
            return full
        self.open.add(request)
        if request.deadline is not None:
            self.expiry.add(request)
        return None

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
                outgoing.append(self._outbox.add(model, batch, now))
        return outgoing

    def pump_all(self, now: int) -> list[Outgoing]:
        return self._outbox.resend() + self.pump(self._batchers, now)

    def ran(self, model: ModelKey, run_ns: int, now: int) -> None:
        """A batch that ran for `run_ns` is back; 0 = it did not run."""
        self._batchers[model].learn(run_ns, now)

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
            self._batchers[request.model, request.version].remove(request)
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

    def follow_catalog(self) -> None:
        """Models may have been reloaded with other batching rules."""
        for model in self._catalog.models():
            batcher = self._batchers.get((model.name, model.version))
            if batcher is not None:
                batcher.set_policy(
                    policy_of(model, self._settings), max_queue_of(model, self._settings)
                )

    def _batcher(self, model: ModelKey) -> ModelBatcher:
        batcher = self._batchers.get(model)
        if batcher is None:
            known, settings = self._catalog.find(*model), self._settings
            policy, most = policy_of(known, settings), max_queue_of(known, settings)
            batcher = ModelBatcher(policy, most, self._tenants)
            self._batchers[model] = batcher
        return batcher

    def _wake_later(self, model: ModelKey, wake_ns: int | None, now: int) -> None:
        batcher = self._batchers[model]
        if wake_ns is not None and not now < batcher.wake_ns <= wake_ns:
            batcher.wake_ns = wake_ns
            self._wake_at(wake_ns, model)
