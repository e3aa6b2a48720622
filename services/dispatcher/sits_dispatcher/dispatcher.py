"""The dispatcher itself: takes batches from fronts, gives micro-batches to executors,
brings the results back. Every micro-batch ends in exactly one result, whatever dies."""

import threading
from collections.abc import Collection, Iterable, Sequence
from itertools import count
from typing import Final

import structlog

from sits_channel import wire
from sits_channel.pool_reader import PoolReader, StaleReference
from sits_core.clock import now_ns
from sits_core.errors import Cancelled, DeadlineExceeded, SitsError, Unavailable
from sits_core.tracing import Tracer
from sits_dispatcher import attempts, spans
from sits_dispatcher.attempts import Hedges
from sits_dispatcher.guard import Guard
from sits_dispatcher.inlining import inlined
from sits_dispatcher.job import Attempt, Front, Job, Peer, model_key
from sits_dispatcher.metrics import Metrics
from sits_dispatcher.micro_batches import Part, micro_batches
from sits_dispatcher.pacing import Pacing
from sits_dispatcher.pending import Pending
from sits_dispatcher.pipeline_steps import PipelineSteps
from sits_dispatcher.placer import Placed, Placer
from sits_dispatcher.settings import DispatcherSettings
from sits_dispatcher.signals import Signals, by_model
from sits_dispatcher.traffic import Traffic
from sits_dispatcher.ways_taken import WaysTaken
from sits_dispatcher.weights import Weights
from sits_protos.v1.common_pb2 import PayloadRef
from sits_protos.v1.link_pb2 import BatchHeader, Cancel, LinkMessage, Release, ResultHeader
from sits_protos.v1.topology_pb2 import TopologySnapshot
from sits_scheduling.candidates import ExecutorTable
from sits_scheduling.explain import NO_STEP, PathStep
from sits_scheduling.outcomes import Outcome
from sits_scheduling.paths import Later
from sits_scheduling.replacing import surplus
from sits_scheduling.signals import Sample
from sits_scheduling.tenants import Tenants

log = structlog.get_logger()

FEW: Final = 8
"""Results of so many requests go on before anything is learnt from them. More come when much
waits: then the front's next batch should find this one's load released."""

_GIVEN_UP: Final = Cancelled("the request was cancelled before it ran").to_proto()

TAKEN_BACK = "TAKEN_BACK"
"""The reason with which an executor gives back what it has not run."""


class Dispatcher:
    """All state behind one lock; nothing in here waits.

    The lock is held for a decision and a non-blocking write, some tens of microseconds a
    batch. `table` and `placer` belong to it: others touch them only under `lock`.
    """

    def __init__(
        self, settings: DispatcherSettings, table: ExecutorTable, placer: Placer,
        weights: Weights, reader: PoolReader, tracer: Tracer, metrics: Metrics, tenants: Tenants,
    ) -> None:  # fmt: skip
        self.lock = threading.RLock()
        self.table, self.placer = table, placer
        self._settings, self._weights, self._reader = settings, weights, reader
        self.tracer, self._metrics = tracer, metrics
        self.guard, self._signals = Guard(metrics), Signals()
        self.pacing = Pacing(metrics, on=settings.dispatcher_jitter_control)
        self.hedges = Hedges(settings.dispatcher_hedge_percent)
        self.traffic, self._ways_taken = Traffic(), WaysTaken()
        self._executors: dict[str, Peer] = {}
        self._sharing: set[str] = set()
        self._in_flight: dict[int, Job] = {}
        self._pending = Pending(settings.dispatcher_max_pending, placer.order, tenants)
        self._keys = count(1)
        self.steps = PipelineSteps(self, reader)

    def __repr__(self) -> str:
        return f"<Dispatcher {len(self._in_flight)} in flight, {self._pending!r}, {self.table!r}>"

    # from fronts

    def batch(self, front: Front, head: bytes, body: memoryview) -> None:
        """Place a batch; its results go to `front`."""
        header = BatchHeader.FromString(head)
        key = model_key(header.model, header.version)
        with self.lock:
            plan = self.steps.pipelines.find(key)
            if plan is not None:
                limit = self.steps.capacity(key)[2]
                for part in micro_batches(header, body, limit):
                    self.steps.begin(plan, front, part)
                return
            for part in micro_batches(header, body, self.table.row_limit(key)):
                self._accept(front, part)

    def cancel(self, front: Front, cancel: Cancel) -> None:
        """Nobody waits for these requests any more; what waits here for nobody else is dropped."""
        with self.lock:
            for job in self._pending.jobs():
                if _is(job, front, cancel.batch_id):
                    job.give_up(cancel.requests)
            for job in self._pending.remove(lambda j: j.given_up):
                self._drop(job)
            for job in self._in_flight.values():
                if _is(job, front, cancel.batch_id) and (own := job.give_up(cancel.requests)):
                    self._forward_cancel(job, own)
            self.steps.cancelled(front, cancel)

    def release_slots(self, head: bytes) -> None:
        """Pass a front's Release on to the executor whose slots it names."""
        with self.lock:
            peer = self._executors.get(Release.FromString(head).instance)
            if peer is not None:
                peer.write(wire.join(wire.RELEASE, head))

    def front_lost(self, front: Front) -> None:
        """Its waiting batches are dropped, its running ones cancelled."""
        with self.lock:
            front.gone = True
            for job in self._pending.remove(lambda j: j.front is front):
                job.release()
            for job in self._in_flight.values():
                if job.front is front:
                    self._forward_cancel(job)
            self.steps.lost(front)

    # for steps of pipelines

    def accept_step(self, front: Front, part: Part, later: Sequence[Later], path: PathStep) -> None:
        """A step of a pipeline, as a batch whose result goes to `front`."""
        self._accept(front, part, tuple(later), path)

    def release(self, executor: str, slots: Sequence[PayloadRef]) -> None:
        """Nobody reads these slots of the executor's pool any more."""
        peer = self._executors.get(executor)
        if peer is not None:
            release = Release(instance=executor, slots=slots)
            peer.write(LinkMessage(release=release).SerializeToString())

    # from executors

    def executor_joined(self, executor_id: str, peer: Peer, *, shares_memory: bool = False) -> None:
        with self.lock:
            self._executors[executor_id] = peer
            if shares_memory:
                self._sharing.add(executor_id)

    def result(self, executor_id: str, head: bytes, body: memoryview) -> None:
        """Bring a result back to the front it belongs to. Late and unknown ones are counted."""
        header = ResultHeader.FromString(head)
        with self.lock:
            job = self._in_flight.get(header.batch_id)
            if job is None or job.executor != executor_id:
                self._metrics.dropped("late_result")
                self._give_back(executor_id, header, body)
                return
            del self._in_flight[job.key]
            now = now_ns()
            if _plain(job, header):
                # Somebody waits for the answer; what it teaches can wait.
                self._answer(job, header, body)
                self._learn(executor_id, job, header, now)
                self.pump((job.model,))
                return
            outcome = self._learn(executor_id, job, header, now)
            if (job.twin or job.beaten) and not self._counts(job, outcome):
                self._give_back(executor_id, header, body)
            elif outcome is Outcome.CANCELLED and header.error.reason == TAKEN_BACK:
                self._taken_back(job)
            elif self._try_elsewhere(job, outcome):
                job.failed_on.add(executor_id)
                self._move(job)
            else:
                if job.front.gone:
                    self._give_back(executor_id, header, body)
                self._answer(job, header, body)
            self.pump((job.model,))

    def executor_lost(self, executor_id: str) -> None:
        """Move its unfinished micro-batches to other executors."""
        with self.lock:
            self._executors.pop(executor_id, None)
            self._sharing.discard(executor_id)
            self.guard.forget(executor_id)
            self.placer.forget(executor_id)
            self.pacing.forget(executor_id)
            self.traffic.forget(executor_id)
            lost = [job for job in self._in_flight.values() if job.executor == executor_id]
            for job in lost:
                del self._in_flight[job.key]
                self.guard.lost(job, now_ns())
                job.release()
                if self._counts(job, Outcome.FAULT):
                    self._move(job)

    # time and capacity

    def pump(self, models: Iterable[str] | None = None) -> None:
        """Place what waits, as far as there is room. Call after capacity grew."""
        with self.lock:
            for model in self._pending.models() if models is None else models:
                while (job := self._pending.first(model)) and self._place(job):
                    self._pending.pop(model)

    def expire(self, now: int | None = None) -> None:
        """Refuse waiting jobs whose time is up. Call a few times a second."""
        moment = now_ns() if now is None else now
        patience_ns = int(self._settings.dispatcher_wait_s * 1e9)
        with self.lock:
            for job in self._pending.remove(lambda j: j.expired(moment)):
                self._fail(job, _too_late())
            unserved = {m for m in self._pending.models() if self.table.capacity(m)[0] == 0}
            given_up = self._pending.remove(
                lambda j: j.model in unserved and moment - j.received_ns > patience_ns
            )
            for job in given_up:
                self._fail(job, _nobody(job))
            self._metrics.pending(len(self._pending))
            self.guard.look(moment)
            if self.pacing.look(moment) and self.pacing.late():
                self.replace()
            self.pump()

    def idle(self) -> bool:
        """All results have come back."""
        return not any(self.counts())

    def counts(self) -> tuple[int, int]:
        """Micro-batches in flight and waiting."""
        return len(self._in_flight), len(self._pending)

    def hedge(self, now: int) -> None:
        """Try a second time, elsewhere, what takes longer than almost all do. Call every few
        milliseconds."""
        with self.lock:
            for job in list(self.hedges.late(self._in_flight.values(), now)):
                busy = {job.executor, *self.table.busy(job.model), *self.guard.excluded(now)}
                idle = set(self.table.servers(job.model)) - busy
                if self.hedges.allow(job, len(idle), now):
                    self._try_twice(job, Attempt.HEDGE, busy)

    def break_circuits(self, now: int) -> None:
        """Give executors that fail often nothing more until a probe succeeds."""
        with self.lock:
            self.guard.break_circuits(now)

    def replace(self) -> None:
        """Take waiting micro-batches back from executors that hold more than their part: they
        are placed anew when they come."""
        with self.lock:
            unwell = self.guard.excluded(now_ns())
            for model in by_model(self._in_flight.values()):
                for executor, count in surplus(self.table.held(model, unwell)).items():
                    self._take_back(model, executor, count)

    # what governance looks at

    def measure_load(self) -> None:
        """Call many times between two samples."""
        with self.lock:
            batches = by_model([*self._in_flight.values(), *self._pending.jobs()])
            slots = {model: self.table.capacity(model)[0] for model in batches}
            self._signals.load(batches, slots)

    def sample(self, snapshots: Iterable[TopologySnapshot], now: int) -> Sample:
        with self.lock:
            taken = self._ways_taken.share(self.traffic.totals(), self.table.affinity, now)
            return self._signals.take(
                self._pending.jobs(), len(self._in_flight), snapshots, now, taken
            )

    # steps

    def _accept(
        self, front: Front, part: Part, later: tuple[Later, ...] = (), path: PathStep = NO_STEP
    ) -> None:
        job = Job(next(self._keys), front, part.header, part.body, part.first)
        if path is not NO_STEP:
            self.placer.on_path(job, later, path)
        if job.expired(job.received_ns):
            self._fail(job, _too_late())
        elif not self._place(job) and not self._pending.add(job):
            self._fail(job, Unavailable("Exceeds maximum queue size", reason="QUEUE_FULL"))

    def _learn(self, executor_id: str, job: Job, header: ResultHeader, now: int) -> Outcome:
        """From a result: the executor's load and health, run times, metrics."""
        outcome = self.guard.ended(job, header, now)
        self.placer.finished(job, header.times, now)
        self._signals.returned(job, header.times)
        if header.gang_runs:
            self._signals.gang_ran(header, now)
        self.pacing.returned(executor_id, job, header.times, now)
        self.traffic.moved(job.place, executor_id, header.payload_bytes)
        self.hedges.returned(job, outcome, now)
        self._metrics.returned(executor_id, header, failed=header.HasField("error"))
        return outcome

    def _move(self, job: Job) -> None:
        """To another executor: the one it was on is gone, or failed it."""
        job.moves += 1
        if job.front.gone:
            return
        if job.given_up:
            self._drop(job)
        elif job.expired(now_ns()):
            self._fail(job, _too_late())
        elif job.moves > self._settings.dispatcher_max_moves:
            self._fail(job, Unavailable("the executor was lost, and so were those tried after it"))
        elif not self._place(job):
            self._pending.add(job, force=True)

    def _place(self, job: Job) -> bool:
        """Decide and send, or fail. False when no executor has room."""
        started_ns = now_ns()
        unreachable = list(self.pacing.held(started_ns))
        while (placed := self._choose(job, unreachable, started_ns)) is not None:
            try:
                message = self._outgoing(job)
            except StaleReference as error:
                job.release()
                self._fail(job, error)
                return True
            # Stamped first: over a ring the executor has it before `write` returns.
            job.sent_ns = now_ns()
            if self._executors[placed.executor].write(message).accepted:
                self._sent(job, placed, started_ns)
                if due := self.guard.due(started_ns):
                    self._probe(job, due)
                return True
            # Its link is full or closing; `pump` comes back to it.
            job.release()
            unreachable.append(placed.executor)
        return False

    def _try_twice(self, job: Job, attempt: Attempt, but: Collection[str]) -> None:
        """A second attempt, at none of `but`. When it cannot be, the first one still is."""
        second = attempts.copied(job, next(self._keys), attempt)
        placed = self.placer.place(second, now_ns(), but)
        if placed is None:
            return
        try:
            message = self._outgoing(second)
        except StaleReference:
            second.release()
            return
        second.sent_ns = now_ns()
        if self._executors[placed.executor].write(message).accepted:
            attempts.pair(job, second)
            self._metrics.tried_twice(attempt.name.lower())
            self._sent(second, placed, second.sent_ns)
        else:
            second.release()

    def _probe(self, job: Job, due: Collection[str]) -> None:
        """Let executors show that they are well again, with a copy of what another one runs."""
        servers = self.table.servers(job.model)
        for executor in due:
            if executor in servers and executor != job.executor and job.twin is None:
                self._try_twice(job, Attempt.PROBE, [e for e in servers if e != executor])

    def _counts(self, job: Job, outcome: Outcome) -> bool:
        """Whether this end of an attempt is the answer; the other one need not go on then. A
        probe does: what it shows is how it ends."""
        other = job.twin
        if not attempts.counts(job, outcome):
            return False
        if other is not None:
            self._metrics.won(job.attempt.name.lower())
            if other.attempt is not Attempt.PROBE:
                self._forward_cancel(other)
        return True

    def _give_back(self, executor_id: str, header: ResultHeader, body: memoryview) -> None:
        """Nobody reads these outputs: the executor may have its slots again."""
        if header.payload_bytes <= header.inline_bytes:
            return
        slots = [t.reference for t in wire.parse(body).outputs if t.HasField("reference")]
        if slots:
            self.release(executor_id, slots)

    def _take_back(self, model: str, executor: str, count: int) -> None:
        """Ask for the newest: what came first is about to run."""
        there = [
            job for job in self._in_flight.values()
            if job.executor == executor and job.model == model and job.twin is None
        ]  # fmt: skip
        newest = sorted(there, key=lambda job: job.sent_ns)[-count:]
        for job in newest:
            ask = LinkMessage(cancel=Cancel(batch_id=job.key, if_waiting=True))
            self._executors[executor].write(ask.SerializeToString())

    def _taken_back(self, job: Job) -> None:
        """It has not run, and goes where it is its turn sooner."""
        self._metrics.replaced()
        job.failed_on = {job.executor}
        if job.given_up:
            self._drop(job)
        elif not job.front.gone and not self._place(job):
            self._pending.add(job, force=True)

    def _try_elsewhere(self, job: Job, outcome: Outcome) -> bool:
        """Whether a failed micro-batch gets another chance; inference has no side effects."""
        if outcome is Outcome.SUCCESS or not self.table.others(job.model, {job.executor}):
            return False
        rows, most = job.header.rows, self._settings.dispatcher_max_moves
        run_ns = rows * self.placer.row_ns(job.model, rows)
        return self.guard.may_retry(job, outcome, now_ns(), most, run_ns)

    def _choose(self, job: Job, unreachable: list[str], now: int) -> Placed | None:
        """Not an executor that fails, unless all that serve the model do: then any is better
        than none."""
        unwell = self.guard.excluded(now)
        if job.failed_on:
            unwell = {*unwell, *job.failed_on}
        excluded = {*unwell, *unreachable} if unwell or unreachable else ()
        placed = self.placer.place(job, now, excluded)
        if placed is None and unwell and not self.table.others(job.model, unwell):
            placed = self.placer.place(job, now, unreachable)
        return placed

    def _sent(self, job: Job, placed: Placed, started_ns: int) -> None:
        self.guard.sent(job, job.sent_ns)
        self.pacing.sent(job.executor, job.sent_ns)
        self.hedges.sent(job)
        self._in_flight[job.key] = job
        self._metrics.placed(placed, job)
        if job.header.explain:
            job.explanation = self.placer.why()
        self.traffic.moved(job.place, job.executor, job.header.payload_bytes)
        if job.cancelled:  # while it waited, or where it was before
            self._forward_cancel(job, sorted(job.cancelled))
        if job.header.trace_contexts:
            spans.placed(self.tracer, job, placed, started_ns, self._weights.origins)

    def _outgoing(self, job: Job) -> bytes:
        header = job.header
        header.batch_id, header.moves = job.key, job.moves
        shared = job.executor in self._sharing
        header.results_by_reference = shared and job.front.shares_memory
        body = job.body
        if header.by_reference and not shared:
            body, header.inline_bytes = inlined(body, self._reader), header.payload_bytes
        return wire.join(wire.BATCH, header.SerializeToString(), body)

    def _answer(self, job: Job, header: ResultHeader, body: bytes | memoryview) -> None:
        header.batch_id = job.batch_id
        header.first_request, header.requests = job.first_request, job.header.requests
        header.times.dispatcher_received = job.received_ns
        header.times.dispatcher_sent = job.sent_ns
        header.times.dispatcher_returned = now_ns()
        if job.explanation:
            header.explanation = job.explanation
        if job.header.trace_contexts and header.times.executor_sent:
            spans.returned(self.tracer, job, header.times)
        if job.front.gone:
            return
        message = wire.join(wire.RESULT, header.SerializeToString(), body)
        if not job.front.peer.write(message).accepted:
            # A front that reads nothing. Losing the link makes it send again what is open.
            self._metrics.dropped("front_full")
            job.front.peer.close()

    def _fail(self, job: Job, error: SitsError) -> None:
        self._metrics.refused(error.reason)
        self._answer(job, ResultHeader(error=error.to_proto(), version=job.header.version), b"")

    def _drop(self, job: Job) -> None:
        """Nobody waits for it: the front hears of it all the same, and has its place back."""
        self._metrics.dropped("cancelled")
        self._answer(job, ResultHeader(error=_GIVEN_UP, version=job.header.version), b"")

    def _forward_cancel(self, job: Job, positions: Sequence[int] = ()) -> None:
        """None at all = the whole."""
        peer = self._executors.get(job.executor)
        if peer is not None:
            message = LinkMessage(cancel=Cancel(batch_id=job.key, requests=positions))
            peer.write(message.SerializeToString())


def _plain(job: Job, header: ResultHeader) -> bool:
    """A success of the only attempt, of few requests, for a front that is there. Not a step of a
    pipeline: the next one is placed within its answer, and should find this one's load
    released."""
    return job.header.requests <= FEW and not (
        job.twin or job.beaten or job.front.gone or job.is_step or header.HasField("error")
    )


def _is(job: Job, front: Front, batch_id: int) -> bool:
    return job.front is front and job.batch_id == batch_id


def _too_late() -> DeadlineExceeded:
    return DeadlineExceeded("Request timeout expired", reason="DEADLINE_EXCEEDED_IN_DISPATCHER")


def _nobody(job: Job) -> Unavailable:
    name = f"model '{job.header.model}' version {job.header.version}"
    return Unavailable(f"no executor that serves {name} is connected", reason="NO_EXECUTOR")
