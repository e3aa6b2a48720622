"""One dispatcher as the front door sees it: its credits and the batches it owes answers for."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sits_channel.link import Link
from sits_preprocess.batcher import Live
from sits_protos.v1.common_pb2 import PayloadRef
from sits_protos.v1.link_pb2 import CloseReason, Credit, Credits
from sits_scheduling.batching import Capacity

ModelKey = tuple[str, str]


@dataclass(slots=True, eq=False)
class Sent:
    """A batch under way. `open` counts requests without a result so far."""

    batch_id: int
    model: ModelKey
    lives: list[Live]
    reason: CloseReason.ValueType
    closed_ns: int
    moves: int = 0
    open: int = 0
    slots: list[PayloadRef] = field(default_factory=list)


class DispatchLink:
    """State of one life of a link. Not thread-safe: the engine's lock covers it."""

    def __init__(self, address: str, link: Link) -> None:
        self.address, self.link = address, link
        self.process_id = ""
        self.in_flight: dict[int, Sent] = {}
        self._credits: Mapping[ModelKey, Credit] = {}
        self._outstanding: dict[ModelKey, int] = {}

    def set_credits(self, credits_: Credits) -> None:
        self._credits = {(c.model, c.version): c for c in credits_.models}

    def serves(self, model: ModelKey) -> bool:
        credit = self._credits.get(model)
        return credit is not None and credit.window > 0

    def shares_memory(self, model: ModelKey) -> bool:
        credit = self._credits.get(model)
        return credit is not None and credit.shared_memory

    def room(self, model: ModelKey) -> int:
        credit = self._credits.get(model)
        return credit.window - self._outstanding.get(model, 0) if credit else 0

    def idle(self, model: ModelKey) -> int:
        credit = self._credits.get(model)
        return credit.instances - self._outstanding.get(model, 0) if credit else 0

    def reserve(self, sent: Sent) -> None:
        sent.open = len(sent.lives)
        self.in_flight[sent.batch_id] = sent
        self._outstanding[sent.model] = self._outstanding.get(sent.model, 0) + 1

    def answered(self, sent: Sent, requests: int) -> None:
        """Results for `requests` came; the batch is done when none is open."""
        sent.open -= requests
        if sent.open <= 0 and self.in_flight.pop(sent.batch_id, None) is not None:
            self._outstanding[sent.model] -= 1

    def take_back(self, sent: Sent) -> bool:
        """Un-send a batch. False when its answer or a lost link was faster."""
        if self.in_flight.pop(sent.batch_id, None) is None:
            return False
        self._outstanding[sent.model] -= 1
        return True

    def oldest_ns(self, model: ModelKey) -> int:
        return min((s.closed_ns for s in self.in_flight.values() if s.model == model), default=0)

    def __repr__(self) -> str:
        return f"<DispatchLink {self.address} {len(self.in_flight)} in flight>"


def capacity(
    links: list[DispatchLink], model: ModelKey, run_ns: int, last_result_ns: int
) -> Capacity:
    """What may be sent over all links together.

    The next instance is expected to be free one run after the oldest unanswered batch
    left, or after the last answer, whichever is later. Weakness: with several instances
    that is an estimate for the earliest one only.
    """
    room = sum(max(0, link.room(model)) for link in links)
    idle = sum(max(0, link.idle(model)) for link in links)
    if run_ns == 0 or idle > 0:
        return Capacity(room, idle, 0, run_ns)
    oldest = min((t for link in links if (t := link.oldest_ns(model))), default=0)
    return Capacity(room, idle, max(oldest, last_result_ns) + run_ns, run_ns)
