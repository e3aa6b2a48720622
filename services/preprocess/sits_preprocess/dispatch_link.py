"""One dispatcher as the front door sees it: its credits and the batches it owes answers for."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from sits_channel.link import Link
from sits_preprocess.request import ModelKey, Request
from sits_protos.v1.common_pb2 import PayloadRef
from sits_protos.v1.link_pb2 import Cancel, CloseReason, Credits, LinkMessage
from sits_scheduling.batching import Capacity
from sits_scheduling.gate import Gate
from sits_scheduling.next_free import NextFree
from sits_scheduling.tenant_file import TIERS
from sits_scheduling.tenants import Tier


@dataclass(slots=True, eq=False)
class Sent:
    """A batch under way. `open` counts requests without a result so far. `withdrawn` are the
    positions of those that nobody waits for; whoever comes last of who notes one and who has
    `written` the batch tells the dispatcher."""

    batch_id: int
    model: ModelKey
    requests: list[Request]
    rows: int
    reason: CloseReason.ValueType
    closed_ns: int
    moves: int = 0
    open: int = 0
    written: bool = False
    withdrawn: list[int] = field(default_factory=list)
    slots: list[PayloadRef] = field(default_factory=list)
    gate: Gate | None = None
    expected_ns: float = 0.0

    def leave_gate(self) -> None:
        """It is not under way any more. Right on every path, twice too."""
        gate, self.gate = self.gate, None
        if gate is not None:
            gate.returned((), 0, "", self.expected_ns, 0.0, 0)


@dataclass(slots=True, eq=False)
class _Share:
    """What the dispatcher takes of one model, and what it has of it."""

    window: int = 0
    instances: int = 0
    micro_batch_rows: int = 0
    shared_memory: bool = False
    sent: dict[int, Sent] = field(default_factory=dict)

    @property
    def room(self) -> int:
        return self.window - len(self.sent)

    @property
    def idle(self) -> int:
        return self.instances - len(self.sent)


_NOTHING: Final = _Share()


class DispatchLink:
    """State of one life of a link. Not thread-safe: the engine's lock covers it."""

    def __init__(self, address: str, link: Link) -> None:
        self.address, self.link = address, link
        self.process_id = ""
        self.in_flight: dict[int, Sent] = {}
        self._shares: dict[ModelKey, _Share] = {}
        self.shed: frozenset[Tier] = frozenset()
        self.degrade = False

    def set_credits(self, credits_: Credits) -> None:
        self._shares = {m: _Share(sent=s.sent) for m, s in self._shares.items() if s.sent}
        for credit in credits_.models:
            share = self._shares.setdefault((credit.model, credit.version), _Share())
            share.window, share.instances = credit.window, credit.instances
            share.shared_memory = credit.shared_memory
            share.micro_batch_rows = credit.micro_batch_rows
        self.degrade = credits_.degrade
        self.shed = frozenset(TIERS[name] for name in credits_.shed_tiers if name in TIERS)

    def serves(self, model: ModelKey) -> bool:
        return self.share(model).window > 0

    def shares_memory(self, model: ModelKey) -> bool:
        return self.share(model).shared_memory

    def share(self, model: ModelKey) -> _Share:
        return self._shares.get(model, _NOTHING)

    def reserve(self, sent: Sent) -> None:
        sent.open = len(sent.requests)
        sent.written, sent.withdrawn = False, []
        self.in_flight[sent.batch_id] = sent
        self._shares.setdefault(sent.model, _Share()).sent[sent.batch_id] = sent

    def answered(self, sent: Sent, requests: int) -> None:
        """Results for `requests` came; the batch is done when none is open."""
        sent.open -= requests
        if sent.open <= 0:
            self.take_back(sent)

    def cancel(self, sent: Sent, positions: Sequence[int]) -> None:
        """Nobody waits for these any more. It needs no lock."""
        cancel = Cancel(batch_id=sent.batch_id, requests=positions)
        self.link.write(LinkMessage(cancel=cancel).SerializeToString())

    def take_back(self, sent: Sent) -> bool:
        """Forget a batch. False when its answer or a lost link was faster."""
        if self.in_flight.pop(sent.batch_id, None) is None:
            return False
        del self._shares[sent.model].sent[sent.batch_id]
        return True

    def __repr__(self) -> str:
        return f"<DispatchLink {self.address} {len(self.in_flight)} in flight>"


def capacity(
    links: Iterable[DispatchLink], model: ModelKey, next_free: NextFree, least_run_ns: int
) -> Capacity:
    """What may be sent over all links together."""
    room = idle = oldest_ns = rows = 0
    for link in links:
        share = link.share(model)
        room += max(0, share.room)
        idle += max(0, share.idle)
        for sent in share.sent.values():  # the first is the oldest
            if not oldest_ns or sent.closed_ns < oldest_ns:
                oldest_ns, rows = sent.closed_ns, sent.rows
            break
    return next_free.capacity(room, idle, oldest_ns, rows, least_run_ns)
