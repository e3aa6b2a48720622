"""Translates what dispatchers send into batches on queues. Serves sits.v1.Execute."""

import threading
from itertools import count

import structlog
from google.protobuf.message import DecodeError

from sits_channel import wire
from sits_channel.link import Link
from sits_core.clock import now_ns
from sits_core.errors import Cancelled, InvalidArgument, SitsError, Unavailable
from sits_executor import batch as batches
from sits_executor.answers import Run, Stages, result, whole_failure
from sits_executor.batch import Batch
from sits_executor.metrics import Metrics
from sits_executor.payloads import Payloads
from sits_executor.repository.catalog import Catalog
from sits_executor.session import Session
from sits_executor.tenancy.memory import TenantMemory
from sits_protos.v1.control_pb2 import PeerState
from sits_protos.v1.link_pb2 import (
    BatchHeader,
    Cancel,
    Credit,
    Credits,
    Hello,
    LinkMessage,
    ModelEntry,
    Release,
)
from sits_scheduling.parts import Parts

log = structlog.get_logger()

TAKEN_BACK = Cancelled("taken back before it ran", reason="TAKEN_BACK")

_BATCH_TAG = wire.join(wire.BATCH, b"")[:1]
"""How a batch starts. Batches are read whole, without the copies that splitting makes."""


class ExecuteListener:
    """All links of this executor. A broken message never ends a link that works otherwise.

    The catalog says what this executor takes, credits say how much of that each dispatcher may
    use: they do not know of each other.
    """

    def __init__(
        self,
        catalog: Catalog,
        payloads: Payloads,
        metrics: Metrics,
        instance: str,
        max_message_bytes: int,
    ) -> None:
        self._catalog, self._payloads, self._metrics = catalog, payloads, metrics
        self._instance, self._max_message_bytes = instance, max_message_bytes
        self.tenant_memory: TenantMemory | None = None
        self._sessions: dict[Link, Session] = {}
        self._parts: Parts[Session] = Parts()
        self._numbers = count(1)
        self._lock = threading.Lock()

    def opened(self, link: Link) -> None:
        holder = f"link-{next(self._numbers)}"
        session = Session(link, holder, self._instance, self._max_message_bytes)
        with self._lock:
            self._sessions[link] = session
            self._metrics.links.set(len(self._sessions))
            self._parts.join(session, now_ns())
            self._tell_credits()
            link.write(self._catalog_message())

    def closed(self, link: Link, reason: str) -> None:
        """Nobody waits for its batches any more: what has not started is dropped."""
        with self._lock:
            session = self._sessions.pop(link)
            self._metrics.links.set(len(self._sessions))
            self._parts.leave(session)
            self._tell_credits()
        session.cancel_all()
        dropped = [
            batch
            for model in self._catalog.loaded()
            for batch in model.queue.remove(lambda batch: batch.holder == session.holder)
        ]
        if self.tenant_memory is not None:
            self.tenant_memory.drop(dropped)
        self._payloads.release_all(session.holder)
        log.info("link.closed", peer=link.peer, reason=reason, dropped_batches=len(dropped))

    def received(self, link: Link, message: bytes) -> None:
        session = self._sessions[link]
        try:
            if message.startswith(_BATCH_TAG):
                self._batch(session, message)
            else:
                self._handle(session, wire.split(message))
        except (wire.MalformedMessage, DecodeError) as error:
            self._metrics.malformed.inc()
            log.warning("link.malformed", peer=link.peer, error=str(error))

    def announce(self) -> None:
        """Tell every dispatcher its part of the catalog, and the catalog."""
        with self._lock:
            self._tell_credits()
            message = self._catalog_message()
            for session in self._sessions.values():
                session.link.write(message)

    def greet(self, hello: Hello) -> None:
        """Send Hello again, because something in it changed."""
        message = LinkMessage(hello=hello).SerializeToString()
        for session in self._links():
            session.link.write(message)

    @property
    def idle(self) -> bool:
        """Every batch that came is answered."""
        return all(session.idle for session in self._links())

    def readers(self) -> list[threading.Thread]:
        """Threads that read links, and run short batches."""
        return [session.reader for session in self._links()]

    def peers(self) -> list[PeerState]:
        return [session.state() for session in self._links()]

    def _links(self) -> list[Session]:
        with self._lock:
            return list(self._sessions.values())

    def _catalog_message(self) -> bytes:
        return LinkMessage(catalog=self._catalog.message()).SerializeToString()

    def _tell_credits(self) -> None:
        """Callers hold the lock."""
        entries = self._catalog.entries()
        for session in self._sessions.values():
            models = [self._credit(session, entry) for entry in entries if entry.slots]
            message = LinkMessage(credits=Credits(models=models))
            session.link.write(message.SerializeToString())

    def _credit(self, session: Session, entry: ModelEntry) -> Credit:
        return Credit(
            model=entry.name,
            version=entry.version,
            window=self._parts.of(session, entry.slots),
            instances=self._parts.of(session, entry.instances),
        )

    def _look_who_sends(self, now: int) -> None:
        with self._lock:
            if self._parts.look(now):
                self._tell_credits()

    def _handle(self, session: Session, head: wire.Split) -> None:
        match head.kind:
            case wire.CANCEL:
                self._cancel(session, Cancel.FromString(head.head))
            case wire.RELEASE:
                self._release(Release.FromString(head.head))
            case wire.HELLO:
                session.hello = Hello.FromString(head.head)
                log.info("link.opened", peer=session.link.peer, dispatcher=session.hello.id)
            case _:
                raise wire.MalformedMessage(
                    f"an executor does not take messages of kind {head.kind}"
                )

    def _batch(self, session: Session, message: bytes) -> None:
        """Whatever is wrong with it: a header that can be read gets its answer."""
        received_ns = now_ns()
        if self._parts.used(session, received_ns):
            self._look_who_sends(received_ns)
        try:
            parsed = wire.parse(message)
        except wire.MalformedMessage:
            header = BatchHeader.FromString(wire.split(message).head)
            self._metrics.malformed.inc()
            session.refuse(header, InvalidArgument("the batch cannot be read"), received_ns)
            return
        try:
            batch = batches.from_message(parsed, received_ns, session.answer, session.holder)
        except InvalidArgument as error:
            session.refuse(parsed.batch, error, received_ns)
        else:
            self._enqueue(session, batch)

    def _enqueue(self, session: Session, batch: Batch) -> None:
        if not session.accept(batch):
            raise wire.MalformedMessage(f"{batch!r} came while one of its number is unanswered")
        try:
            self._write(batch)
        except SitsError as error:
            self._metrics.refused(error.reason, len(batch.requests))
            stages = Stages(batch.received_ns)
            batch.answer(whole_failure(batch.header, error, self._instance, stages))

    def _write(self, batch: Batch) -> None:
        """Raises `NotFound`, `Unavailable` or `ResourceExhausted`."""
        if self.tenant_memory is not None:
            model = self._catalog.find(batch.header.model, batch.header.version)
            self.tenant_memory.admit(batch, model.contract)
        for _ in range(2):
            model = self._catalog.find(batch.header.model, batch.header.version)
            queue = model.queue
            if queue.run_here(batch) or queue.write(batch).accepted:
                return
            if not queue.closed:
                raise Unavailable(
                    f"model '{batch.header.model}' has a full queue", reason="QUEUE_FULL"
                )
            # It was replaced between the two lines above: its successor is there now.
        raise Unavailable(
            f"model '{batch.header.model}' is being replaced", reason="MODEL_NOT_READY"
        )

    def _cancel(self, session: Session, cancel: Cancel) -> None:
        batch = session.find(cancel)
        if batch is None:
            return
        if cancel.if_waiting:
            self._give_back(batch)
            return
        batch.cancel(cancel.requests)
        drops = batch.drops(now_ns())
        if len(drops) == len(batch.requests) and self._take_back(batch):
            self._metrics.refused(Cancelled.reason, len(drops))
            run = Run(Stages(batch.received_ns), drops)
            batch.answer(result(batch, run, self._instance, batch.header.version))

    def _give_back(self, batch: Batch) -> None:
        """To its dispatcher, which has a better place for it. One that runs stays."""
        if self._take_back(batch):
            self._metrics.refused(TAKEN_BACK.reason, len(batch.requests))
            stages = Stages(batch.received_ns)
            batch.answer(whole_failure(batch.header, TAKEN_BACK, self._instance, stages))

    def _take_back(self, batch: Batch) -> bool:
        """Out of its queue, so that its place is free at once. False when it runs already."""
        return any(model.queue.remove(lambda b: b is batch) for model in self._catalog.loaded())

    def _release(self, release: Release) -> None:
        if release.instance == self._instance:
            self._payloads.release(release.slots)
