"""Batches on their way: which dispatcher has them, and which wait for one to come back."""

import threading
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import NamedTuple

from sits_channel.link import Link
from sits_preprocess import batch_message
from sits_preprocess.batcher import ModelBatcher
from sits_preprocess.dispatch_link import DispatchLink, Sent, capacity
from sits_preprocess.engine_metrics import EngineMetrics
from sits_preprocess.payloads import Payloads
from sits_preprocess.request import ModelKey, Request, TensorData
from sits_protos.v1.common_pb2 import PayloadRef
from sits_protos.v1.link_pb2 import CloseReason
from sits_scheduling.batching import Capacity, ClosedBatch
from sits_scheduling.gate import Gate
from sits_scheduling.tenants import Tier

MAX_MOVES = 2

Outgoing = tuple[DispatchLink, Sent]


class Instances(NamedTuple):
    """Batches of a model that run at once, and how many more could start now."""

    parallel: int
    idle: int


class Outbox:
    """Callers hold `lock`, the engine's, unless a method says otherwise.

    A decision gives `Outgoing`: a batch with a reserved place on a link. `send` then builds
    and writes the messages without the lock.
    """

    def __init__(self, lock: threading.Lock, payloads: Payloads, metrics: EngineMetrics) -> None:
        self._lock, self._payloads, self._metrics = lock, payloads, metrics
        self.links: dict[Link, DispatchLink] = {}
        self._stranded: list[Sent] = []
        self._ids = count(1)

    def __repr__(self) -> str:
        batches = sum(len(link.in_flight) for link in self.links.values())
        return f"<Outbox {batches} under way, {len(self._stranded)} stranded>"

    # decisions

    def capacity(self, model: ModelKey, batcher: ModelBatcher) -> Capacity:
        return capacity(self.links.values(), model, batcher.next_free, batcher.least_run_ns)

    def serves(self, model: ModelKey) -> bool:
        return any(link.serves(model) for link in self.links.values())

    def instances(self, model: ModelKey) -> Instances:
        shares = [link.share(model) for link in self.links.values()]
        parallel = sum([share.instances for share in shares])
        return Instances(parallel, sum([max(0, share.idle) for share in shares]))

    def row_limit(self, model: ModelKey) -> int:
        """Largest batch that all dispatchers take of it; 0 = no limit of theirs."""
        limits = [link.share(model).micro_batch_rows for link in self.links.values()]
        return min((limit for limit in limits if limit), default=0)

    def shed(self) -> frozenset[Tier]:
        """Tiers that any dispatcher wants refused."""
        return frozenset().union(*[link.shed for link in self.links.values()])

    def add(
        self, model: ModelKey, batch: ClosedBatch[Request], now: int, gate: Gate | None = None
    ) -> Outgoing:
        """A batch for the link with the most room; there is one that has some."""
        reason = CloseReason.ValueType(batch.reason.value)
        sent = Sent(next(self._ids), model, batch.items, batch.rows, reason, now)
        if gate is not None:
            sent.gate, sent.expected_ns = gate, gate.sent(batch.rows)
        links = self.links.values()
        if len(links) == 1:
            (link,) = links
        else:
            link = max(links, key=lambda candidate: candidate.share(model).room)
        return _reserved(link, sent)

    def resend(self) -> list[Outgoing]:
        """What is stranded and can go now."""
        if not self._stranded:
            return []
        outgoing: list[Outgoing] = []
        waiting, self._stranded = self._stranded, []
        for sent in waiting:
            sent.requests = [request for request in sent.requests if not request.answered]
            link = next((x for x in self.links.values() if x.serves(sent.model)), None)
            if link is not None and sent.requests:
                outgoing.append(_reserved(link, sent))
            elif sent.requests:
                self._stranded.append(sent)
        return outgoing

    def answered(self, link: DispatchLink, sent: Sent, requests: int) -> None:
        """Results for so many requests of `sent` are here."""
        link.answered(sent, requests)
        if sent.open <= 0:
            self._free(sent)

    def lose(self, lost: DispatchLink) -> list[Request]:
        """Put aside what `lost` owes; returns the requests that have moved too often."""
        given_up: list[Request] = []
        for sent in lost.in_flight.values():
            self._free(sent)
            sent.moves += 1
            if sent.moves > MAX_MOVES:
                given_up += sent.requests
            else:
                self._stranded.append(sent)
        return given_up

    def drop_stranded(self, model: ModelKey) -> list[Request]:
        dropped = [sent for sent in self._stranded if sent.model == model]
        self._stranded = [sent for sent in self._stranded if sent.model != model]
        return [request for sent in dropped for request in sent.requests]

    def withdraw(self, request: Request) -> Outgoing | None:
        """Nobody waits for it any more; who is to be told, if somebody works on it."""
        for link in self.links.values():
            if (sent := link.in_flight.get(request.batch_id)) is not None:
                sent.withdrawn.append(request.position)
                return (link, sent) if sent.written else None
        return None

    # without the lock

    def send(self, outgoing: Sequence[Outgoing]) -> None:
        """Build and write. What a link does not take is stranded."""
        for link, sent in outgoing:
            put = partial(self._put, link, sent)
            built = batch_message.build(sent, sent.requests, put)
            if built.slots and not self._own(link, sent, built.slots):
                continue
            accepted = link.link.write(built.message).accepted
            sent.written = accepted
            self._metrics.sent(built, len(sent.requests))
            if sent.withdrawn and accepted:  # a cancel before its batch would be forgotten
                link.cancel(sent, sent.withdrawn)
            if not accepted:
                with self._lock:
                    if link.take_back(sent):
                        self._free(sent)
                        self._stranded.append(sent)

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

    def _free(self, sent: Sent) -> None:
        sent.leave_gate()
        if sent.slots:
            self._payloads.free(sent.slots)
            sent.slots = []


def _reserved(link: DispatchLink, sent: Sent) -> Outgoing:
    """Requests note where they are, so that a cancel finds them."""
    for position, request in enumerate(sent.requests):
        request.batch_id, request.position = sent.batch_id, position
    link.reserve(sent)
    return link, sent
