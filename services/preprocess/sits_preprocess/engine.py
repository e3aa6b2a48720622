"""From checked requests to answers: batches them, sends them out, splits the results.

Every request that `submit` took is answered exactly once: by its result, its deadline, its
cancellation, or an error when what it waits for does not come back.
"""

import threading
from collections.abc import Callable, Sequence
from functools import partial

import structlog
from google.protobuf.message import DecodeError

from sits_channel import wire
from sits_channel.link import Link
from sits_core.clock import now_ns
from sits_core.errors import Cancelled, SitsError, Unavailable
from sits_preprocess import batch_message
from sits_preprocess.announced import AnnouncedCatalog
from sits_preprocess.batcher import Ran
from sits_preprocess.dispatch_link import DispatchLink, Sent
from sits_preprocess.engine_metrics import EngineMetrics
from sits_preprocess.gates import Look
from sits_preprocess.outbox import Outbox
from sits_preprocess.payloads import Payloads
from sits_preprocess.queues import TOO_LATE, Queues
from sits_preprocess.request import Answer, Answered, ModelKey, Request
from sits_preprocess.settings import PreprocessSettings, fallback_of
from sits_preprocess.timer import Timer
from sits_protos.v1.link_pb2 import (
    Catalog,
    Credits,
    Hello,
    LinkMessage,
    Release,
    ResultHeader,
)
from sits_scheduling.tenants import Tenants

log = structlog.get_logger()

TICK_NS = 250_000_000

_LOST = Unavailable("the dispatcher was lost, and so were those tried after it")
_UNSERVED = Unavailable("no executor that serves the model is connected", reason="NO_EXECUTOR")
_UNLINKED = Unavailable("no dispatcher is connected", reason="NO_DISPATCHER")
_CANCELLED = Cancelled("cancelled by the client")
_STOPPING = Unavailable("the server is stopping")
_DRAINING = Unavailable(
    "GRPC server is shutting down and has stopped accepting new requests.", reason="DRAINING"
)

Sink = Callable[[Sequence[Answered]], None]


class Engine:
    """The middle of the front door, and the listener of its links to dispatchers.

    One lock covers all state, and is taken once for what comes together: a transport's
    calls, a result's answers. Messages are built and answers are given outside of it.
    """

    def __init__(
        self,
        settings: PreprocessSettings,
        metrics: EngineMetrics,
        greeting: Callable[[], bytes],
        payloads: Payloads,
        tenants: Tenants,
    ) -> None:
        self._metrics, self._greeting, self._payloads = metrics, greeting, payloads
        self._patience_ns = int(settings.preprocess_wait_s * 1e9)
        self.catalog = AnnouncedCatalog(
            settings.preprocess_wait_s, fallback_of(settings.preprocess_fallback)
        )
        self._lock = threading.Lock()
        self._timer = Timer("engine timer")
        self._outbox = Outbox(self._lock, payloads, metrics)
        self._queues = Queues(settings, self.catalog, self._outbox, metrics, self._wake_at, tenants)
        self._expiry_armed_ns = 0
        self._draining = False
        self._linkless_since_ns = now_ns()
        self._sink: Sink = lambda _answered: None

    def __repr__(self) -> str:
        return f"<Engine {self._queues!r} {self._outbox!r}>"

    # life

    def deliver_to(self, sink: Sink) -> None:
        """All answers go to `sink` from now on, those that come together at once."""
        self._sink = sink

    def start(self) -> None:
        self._timer.start()
        self._tick()

    def stop(self) -> None:
        """Answer what is still open, then stop."""
        self._refuse(list(self._queues.open), _STOPPING)
        self._timer.stop()

    def drain(self) -> None:
        """Refuse new requests from now on; accepted ones go on."""
        self._draining = True

    @property
    def degraded(self) -> bool:
        """Whether a dispatcher that is linked asks for cheaper answers."""
        return self.catalog.degraded

    @property
    def connected(self) -> bool:
        return bool(self._outbox.links)

    def open_requests(self) -> int:
        return len(self._queues.open)

    def links(self) -> list[DispatchLink]:
        return list(self._outbox.links.values())

    # requests

    def refusing(self, now: int) -> bool:
        """Whether requests have been refused just now: then it pays to ask `foresee`."""
        return now < self._queues.refusing_until_ns

    def foresee(self, request: Request, now: int) -> SitsError | None:
        """Why a request, of which no more is known than its model, version, tenant and
        deadline, would be refused."""
        with self._lock:
            return self._queues.foresee(request, now)

    def look(self, request: Request, now: int) -> Look:
        """The same, and what it says of others that came together with it."""
        with self._lock:
            return self._queues.look(request, now)

    def turned_away(self, error: SitsError, requests: int, now: int) -> None:
        """So many more were refused for what `look` had said, or for their deadlines."""
        with self._lock:
            self._queues.turned_away(error, requests, now)

    def submit(self, requests: Sequence[Request]) -> None:
        """Take requests together; each gets one answer, also when it is refused."""
        now = now_ns()
        refused: list[Answered] = []
        models: dict[ModelKey, None] = {}
        with self._lock:
            closed = self._why_closed(now)
            for request in requests:
                error = closed or self._queues.add(request, now)
                if error is None:
                    models[request.model, request.version] = None
                else:
                    refused.append((request, Answer((), error)))
            outgoing = self._queues.pump(models, now)
            self._arm(now)
        self._outbox.send(outgoing)
        if refused:
            self._sink(refused)

    def cancel(self, request: Request) -> None:
        """Nobody waits for `request` any more. It is answered with `Cancelled`, once."""
        self._refuse([request], _CANCELLED)

    # link listener

    def opened(self, link: Link) -> None:
        with self._lock:
            self._outbox.links[link] = DispatchLink(link.peer, link)
        link.write(self._greeting())

    def received(self, link: Link, message: bytes) -> None:
        try:
            self._handle(self._outbox.links[link], wire.split(message))
        except (wire.MalformedMessage, DecodeError) as error:
            log.warning("dispatcher.malformed", peer=link.peer, error=str(error))
            link.close()

    def closed(self, link: Link, reason: str) -> None:
        """Its unanswered batches go to another dispatcher, or to this one when it is back."""
        with self._lock:
            now = self._linkless_since_ns = now_ns()
            lost = self._outbox.links.pop(link)
            given_up = self._outbox.lose(lost)
            self._obey()
            outgoing = self._queues.pump_all(now)
        log.warning("dispatcher.lost", peer=link.peer, reason=reason, batches=len(lost.in_flight))
        self._refuse(given_up, _LOST)
        self._outbox.send(outgoing)

    # steps: messages

    def _handle(self, link: DispatchLink, message: wire.Split) -> None:
        match message.kind:
            case wire.RESULT:
                self._result(link, ResultHeader.FromString(message.head), message.body)
            case wire.CREDITS:
                self._credits(link, Credits.FromString(message.head))
            case wire.CATALOG:
                self._announced(link, Catalog.FromString(message.head))
            case wire.HELLO:
                link.process_id = Hello.FromString(message.head).id
                log.info("dispatcher.linked", peer=link.address, dispatcher=link.process_id)
            case _:
                log.warning("dispatcher.unexpected", peer=link.address, kind=message.kind)

    def _result(self, link: DispatchLink, header: ResultHeader, body: memoryview) -> None:
        now = now_ns()
        with self._lock:
            sent = link.in_flight.get(header.batch_id)
            if sent is None:
                self._metrics.late_results.inc()
                return
            part = sent.requests[header.first_request : header.first_request + header.requests]
            self._outbox.answered(link, sent, len(part))
            waited_for = self._queues.settle(part)
            self._queues.ran(sent.model, part, _ran(header), now)
            outgoing = self._queues.pump((sent.model,), now)
        # The next batch leaves before this one is unpacked: the executor waits, we need not.
        self._outbox.send(outgoing)
        answers = self._unpack(link, sent, part, header, body)
        pairs = zip(part, answers, waited_for, strict=True)
        self._sink([(request, answer) for request, answer, waited in pairs if waited])

    def _unpack(
        self,
        link: DispatchLink,
        sent: Sent,
        part: Sequence[Request],
        header: ResultHeader,
        body: memoryview,
    ) -> list[Answer]:
        """The answers to a part of a batch; the executor gets its slots back."""
        try:
            message = wire.parse(body)
        except wire.MalformedMessage:
            message = LinkMessage()  # fits no batch
        run = batch_message.run_of(header, sent.closed_ns, now_ns())
        answers = batch_message.answers(header, message, part, run, self._payloads.fetch)
        self._metrics.returned(header)
        slots = [t.reference for t in message.outputs if t.HasField("reference")]
        if slots:
            release = Release(instance=header.instance, slots=slots)
            link.link.write(LinkMessage(release=release).SerializeToString())
        return answers

    def _announced(self, link: DispatchLink, catalog: Catalog) -> None:
        self.catalog.announce(link.address, link.process_id, catalog.models)
        with self._lock:
            self._queues.follow()

    def _credits(self, link: DispatchLink, credits_: Credits) -> None:
        with self._lock:
            link.set_credits(credits_)
            self._obey()
            outgoing = self._queues.pump_all(now_ns())
        self._outbox.send(outgoing)

    def _obey(self) -> None:
        """Do what the dispatchers that are linked ask for. Callers hold the lock."""
        self.catalog.degrade(any(link.degrade for link in self._outbox.links.values()))
        self._queues.follow()

    # steps: time

    def _wake_at(self, unix_ns: int, model: ModelKey) -> None:
        self._timer.at(unix_ns, partial(self._wake, model))

    def _wake(self, model: ModelKey) -> None:
        with self._lock:
            outgoing = self._queues.pump((model,), now_ns())
        self._outbox.send(outgoing)

    def _tick(self) -> None:
        """Now and then: give up on what nobody serves, resend what was stranded."""
        now = now_ns()
        with self._lock:
            unserved = self._queues.unserved(now)
            outgoing = self._queues.pump_all(now)
            self._metrics.queued.set(self._queues.waiting())
        self._refuse(unserved, _UNSERVED)
        self._outbox.send(outgoing)
        self._timer.at(now + TICK_NS, self._tick)

    def _arm(self, now: int) -> None:
        """Look at deadlines when the next one passes. Callers hold the lock."""
        next_ns = self._queues.expiry.next_ns()
        if next_ns is not None and not now < self._expiry_armed_ns <= next_ns:
            self._expiry_armed_ns = next_ns
            self._timer.at(next_ns, self._expire)

    def _expire(self) -> None:
        with self._lock:
            now = now_ns()
            late = self._queues.expiry.due(now)
            self._arm(now)
        self._refuse(late, TOO_LATE)

    # steps: answers without a result

    def _refuse(self, requests: Sequence[Request], error: SitsError) -> None:
        """Answer those still open with `error` now, and tell whoever works on them."""
        if not requests:
            return
        with self._lock:
            found = self._queues.withdraw(requests)
            under_way = [(self._outbox.withdraw(request), request.position) for request in found]
        for holder, position in under_way:
            if holder is not None:
                link, sent = holder
                link.cancel(sent, [position])
        if found:
            self._sink([(request, Answer((), error)) for request in found])

    def _why_closed(self, now: int) -> SitsError | None:
        if self._draining:
            return _DRAINING
        unlinked = not self._outbox.links and now - self._linkless_since_ns > self._patience_ns
        return _UNLINKED if unlinked else None


def _ran(header: ResultHeader) -> Ran:
    times = header.times
    run_ns = times.executor_sent - times.input_started if times.input_started else 0
    return Ran(run_ns, header.executed_rows, header.instance)
