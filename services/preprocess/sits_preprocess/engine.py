"""From checked requests to answers: batches them, sends them out, splits the results.

Every request that `submit` took is answered exactly once: by its result, its deadline, its
cancellation, or an error when what it waits for does not come back.
"""

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count

import structlog
from google.protobuf.message import DecodeError

from sits_channel import wire
from sits_channel.link import Link
from sits_core.clock import now_ns
from sits_core.errors import Cancelled, DeadlineExceeded, SitsError, Unavailable
from sits_preprocess import batch_message
from sits_preprocess.announced import AnnouncedCatalog
from sits_preprocess.batcher import Live, ModelBatcher, max_queue_of, policy_of
from sits_preprocess.dispatch_link import DispatchLink, ModelKey, Sent, capacity
from sits_preprocess.engine_metrics import EngineMetrics
from sits_preprocess.payloads import Payloads
from sits_preprocess.request import Answer, Request, TensorData
from sits_preprocess.settings import PreprocessSettings
from sits_preprocess.timer import Timer
from sits_protos.v1.common_pb2 import PayloadRef
from sits_protos.v1.link_pb2 import (
    Cancel,
    Catalog,
    CloseReason,
    Credits,
    Hello,
    LinkMessage,
    Release,
    ResultHeader,
)
from sits_scheduling.batching import ClosedBatch

log = structlog.get_logger()

TICK_NS = 250_000_000
MAX_MOVES = 2

_LOST = Unavailable("the dispatcher was lost, and so were those tried after it")
_UNSERVED = Unavailable("no executor that serves the model is connected", reason="NO_EXECUTOR")

Outgoing = tuple[DispatchLink, Sent]


class Engine:
    """The middle of the front door, and the listener of its links to dispatchers.

    One lock covers all state; messages are built and answers given outside of it.
    """

    def __init__(
        self,
        settings: PreprocessSettings,
        metrics: EngineMetrics,
        greeting: Callable[[], bytes],
        payloads: Payloads,
    ) -> None:
        self._settings, self._metrics, self._greeting = settings, metrics, greeting
        self._payloads = payloads
        self.catalog = AnnouncedCatalog(settings.preprocess_wait_s)
        self._lock = threading.Lock()
        self._links: dict[Link, DispatchLink] = {}
        self._batchers: dict[ModelKey, ModelBatcher] = {}
        self._live: dict[Request, Live] = {}
        self._stranded: list[Sent] = []
        self._ids = count(1)
        self._draining = False
        self._linkless_since_ns = now_ns()
        self._timer = Timer("engine timer")

    def __repr__(self) -> str:
        return f"<Engine {len(self._live)} requests, {len(self._links)} dispatchers>"

    # life

    def start(self) -> None:
        self._timer.start()
        self._tick()

    def stop(self) -> None:
        """Answer what is still open, then stop."""
        self._refuse(list(self._live.values()), Unavailable("the server is stopping"))
        self._timer.stop()

    def drain(self) -> None:
        """Refuse new requests from now on; accepted ones go on."""
        self._draining = True

    @property
    def connected(self) -> bool:
        return bool(self._links)

    def open_requests(self) -> int:
        return len(self._live)

    def links(self) -> list[DispatchLink]:
        return list(self._links.values())

    # requests

    def submit(self, request: Request) -> None:
        """Take a request. Raises `Unavailable` or `DeadlineExceeded` when refused."""
        request.queued_ns = now = now_ns()
        if request.deadline is not None and request.deadline.passed(now):
            raise _too_late()
        with self._lock:
            self._check_open(now)
            live = Live(request)
            batcher = self._batcher((request.model, request.version))
            batcher.add(live)
            self._live[request] = live
            outgoing = self._pump((request.model, request.version), batcher, now)
        if request.deadline is not None:
            self._timer.at(request.deadline.unix_ns, partial(self._expire, weakref.ref(live)))
        self._send(outgoing)

    def cancel(self, request: Request) -> None:
        """Nobody waits for `request` any more. It is answered with `Cancelled`, once."""
        live = self._live.get(request)
        if live is not None:
            self._withdraw(live, Cancelled("cancelled by the client"))

    # link listener

    def opened(self, link: Link) -> None:
        with self._lock:
            self._links[link] = DispatchLink(link.peer, link)
        link.write(self._greeting())

    def received(self, link: Link, message: bytes) -> None:
        try:
            self._handle(self._links[link], wire.split(message))
        except (wire.MalformedMessage, DecodeError) as error:
            log.warning("dispatcher.malformed", peer=link.peer, error=str(error))
            link.close()

    def closed(self, link: Link, reason: str) -> None:
        """Its unanswered batches go to another dispatcher, or to this one when it is back."""
        with self._lock:
            lost = self._links.pop(link)
            self._linkless_since_ns = now_ns()
            outgoing: list[Outgoing] = []
            given_up = self._strand(lost)
            outgoing = self._pump_all(now_ns())
        log.warning("dispatcher.lost", peer=link.peer, reason=reason, batches=len(lost.in_flight))
        self._refuse(given_up, _LOST)
        self._send(outgoing)

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

    def _result(self, link: DispatchLink, header: ResultHeader, body: bytes) -> None:
        now = now_ns()
        with self._lock:
            sent = link.in_flight.get(header.batch_id)
            if sent is None:
                self._metrics.late_results.inc()
                return
            part = sent.lives[header.first_request : header.first_request + header.requests]
            link.answered(sent, len(part))
            if sent.open <= 0:
                self._freed(sent)
            batcher = self._batchers[sent.model]
            times = header.times
            batcher.learn(times.executor_sent - times.input_started if times.input_started else 0)
            outgoing = self._pump(sent.model, batcher, now)
        # The next batch leaves before this one is unpacked: the executor waits, we need not.
        self._send(outgoing)
        self._unpack(link, sent, header, wire.parse(body), part)

    def _unpack(
        self,
        link: DispatchLink,
        sent: Sent,
        header: ResultHeader,
        message: LinkMessage,
        part: list[Live],
    ) -> None:
        """Answer the requests of a part; the executor gets its slots back."""
        requests = [live.request for live in part]
        times = batch_message.times_of(header, sent.closed_ns, now_ns())
        found = batch_message.answers(header, message, requests, times, self._payloads.fetch)
        slots = [t.reference for t in message.outputs if t.HasField("reference")]
        if slots:
            release = Release(instance=header.instance, slots=slots)
            link.link.write(LinkMessage(release=release).SerializeToString())
        self._answer(zip(part, found, strict=True))

    def _announced(self, link: DispatchLink, catalog: Catalog) -> None:
        self.catalog.announce(link.address, link.process_id, catalog.models)
        with self._lock:
            for model in self.catalog.models():
                batcher = self._batchers.get((model.name, model.version))
                if batcher is not None:
                    batcher.set_policy(
                        policy_of(model, self._settings), max_queue_of(model, self._settings)
                    )

    def _credits(self, link: DispatchLink, credits_: Credits) -> None:
        with self._lock:
            link.set_credits(credits_)
            outgoing = self._pump_all(now_ns())
        self._send(outgoing)

    # steps: sending; callers hold the lock unless said otherwise

    def _pump_all(self, now: int) -> list[Outgoing]:
        outgoing = self._send_stranded()
        for model, batcher in self._batchers.items():
            outgoing += self._pump(model, batcher, now)
        return outgoing

    def _pump(self, model: ModelKey, batcher: ModelBatcher, now: int) -> list[Outgoing]:
        """Close the batches that may leave now, and arrange to look again in time."""
        outgoing: list[Outgoing] = []
        if not len(batcher):
            return outgoing
        links = list(self._links.values())
        room = capacity(links, model, batcher.run_ns, batcher.last_result_ns)
        while (batch := batcher.next_batch(now, room)) is not None:
            outgoing.append(self._close(model, batch, now))
            room = capacity(links, model, batcher.run_ns, batcher.last_result_ns)
        wake_ns = batcher.next_wakeup_ns(now, room)
        if wake_ns is not None and not now < batcher.wake_ns <= wake_ns:
            batcher.wake_ns = wake_ns
            self._timer.at(wake_ns, lambda: self._wake(model))
        return outgoing

    def _close(self, model: ModelKey, batch: ClosedBatch[Live], now: int) -> Outgoing:
        reason = CloseReason.ValueType(batch.reason.value)
        sent = Sent(next(self._ids), model, batch.items, reason, now)
        for position, live in enumerate(batch.items):
            live.batch_id, live.position = sent.batch_id, position
        link = max(self._links.values(), key=lambda candidate: candidate.room(model))
        link.reserve(sent)
        self._metrics.closed(batch.reason, len(batch.items), batch.rows)
        return link, sent

    def _send(self, outgoing: list[Outgoing]) -> None:
        """Build and write, without the lock."""
        for link, sent in outgoing:
            requests = [live.request for live in sent.lives]
            put = partial(self._put, link, sent)
            message, slots = batch_message.build(sent, requests, put)
            if self._own(link, sent, slots) and not link.link.write(message).accepted:
                with self._lock:
                    if link.take_back(sent):
                        self._stranded.append(self._freed(sent))

    def _put(
        self, link: DispatchLink, sent: Sent, column: Sequence[TensorData]
    ) -> PayloadRef | None:
        return self._payloads.put(column, link.address) if link.shares_memory(sent.model) else None

    def _own(self, link: DispatchLink, sent: Sent, slots: list[PayloadRef]) -> bool:
        """Note the slots of a batch. False when its link was lost meanwhile: they are free."""
        with self._lock:
            if link.in_flight.get(sent.batch_id) is sent:
                sent.slots = slots
                return True
        self._payloads.free(slots)
        return False

    def _freed(self, sent: Sent) -> Sent:
        self._payloads.free(sent.slots)
        sent.slots = []
        return sent

    def _strand(self, lost: DispatchLink) -> list[Live]:
        """Put aside what `lost` owes; returns the requests that have moved too often."""
        given_up: list[Live] = []
        for sent in lost.in_flight.values():
            sent.moves += 1
            if sent.moves > MAX_MOVES:
                given_up += self._freed(sent).lives
            else:
                self._stranded.append(self._freed(sent))
        return given_up

    def _send_stranded(self) -> list[Outgoing]:
        outgoing: list[Outgoing] = []
        waiting, self._stranded = self._stranded, []
        for sent in waiting:
            sent.lives = [live for live in sent.lives if not live.done]
            link = next((x for x in self._links.values() if x.serves(sent.model)), None)
            if link is None and sent.lives:
                self._stranded.append(sent)
            elif link is not None and sent.lives:
                for position, live in enumerate(sent.lives):
                    live.position = position
                link.reserve(sent)
                outgoing.append((link, sent))
        return outgoing

    def _batcher(self, model: ModelKey) -> ModelBatcher:
        batcher = self._batchers.get(model)
        if batcher is None:
            known = self.catalog.find(*model)
            policy = policy_of(known, self._settings)
            batcher = ModelBatcher(policy, max_queue_of(known, self._settings))
            self._batchers[model] = batcher
        return batcher

    # steps: time

    def _wake(self, model: ModelKey) -> None:
        with self._lock:
            batcher = self._batchers.get(model)
            outgoing = self._pump(model, batcher, now_ns()) if batcher is not None else []
        self._send(outgoing)

    def _tick(self) -> None:
        """Now and then: give up on what nobody serves, resend what was stranded."""
        now = now_ns()
        with self._lock:
            unserved = self._unserved(now)
            outgoing = self._pump_all(now)
            self._metrics.queued.set(sum(map(len, self._batchers.values())))
        self._refuse(
            unserved,
            _UNSERVED,
        )
        self._send(outgoing)
        self._timer.at(now + TICK_NS, self._tick)

    def _unserved(self, now: int) -> list[Live]:
        patience_ns = int(self._settings.preprocess_wait_s * 1e9)
        unserved: list[Live] = []
        for model, batcher in self._batchers.items():
            if any(link.serves(model) for link in self._links.values()):
                batcher.unserved_since_ns = 0
                continue
            batcher.unserved_since_ns = batcher.unserved_since_ns or now
            if now - batcher.unserved_since_ns > patience_ns:
                unserved += batcher.drop_all()
                unserved += [x for s in self._stranded if s.model == model for x in s.lives]
                self._stranded = [s for s in self._stranded if s.model != model]
        return unserved

    # steps: answers

    def _expire(self, reference: "weakref.ref[Live]") -> None:
        """The timer keeps a weak reference, so that answered requests free their memory."""
        live = reference()
        if live is not None:
            self._withdraw(live, _too_late())

    def _withdraw(self, live: Live, error: SitsError) -> None:
        """Answer `live` with `error` now, and tell whoever still works on it."""
        with self._lock:
            if live.done:
                return
            model = (live.request.model, live.request.version)
            self._batchers[model].remove(live)
            holder = next((x for x in self._links.values() if live.batch_id in x.in_flight), None)
        if holder is not None:
            cancel = Cancel(batch_id=live.batch_id, requests=[live.position])
            holder.link.write(LinkMessage(cancel=cancel).SerializeToString())
        self._answer([(live, Answer(error=error))])

    def _refuse(self, lives: Iterable[Live], error: SitsError) -> None:
        self._answer((live, Answer(error=error)) for live in lives)

    def _answer(self, answers: Iterable[tuple[Live, Answer]]) -> None:
        with self._lock:
            first = [(live, answer) for live, answer in answers if not live.done]
            for live, _ in first:
                live.done = True
                del live.entry  # the other half of a cycle that would keep the payload
                self._live.pop(live.request, None)
        for live, answer in first:
            live.request.answer(answer)

    def _check_open(self, now: int) -> None:
        if self._draining:
            raise Unavailable(
                "GRPC server is shutting down and has stopped accepting new requests.",
                reason="DRAINING",
            )
        patience_ns = int(self._settings.preprocess_wait_s * 1e9)
        if not self._links and now - self._linkless_since_ns > patience_ns:
            raise Unavailable("no dispatcher is connected", reason="NO_DISPATCHER")


def _too_late() -> DeadlineExceeded:
    return DeadlineExceeded("Request timeout expired", reason="DEADLINE_EXCEEDED_IN_QUEUE")
