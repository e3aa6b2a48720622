"""A micro-batch on its way through the dispatcher."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from sits_channel.bounded import Pressure
from sits_core.clock import now_ns
from sits_core.tracing import is_sampled
from sits_protos.v1.link_pb2 import BatchHeader
from sits_scheduling.affinity import Place
from sits_scheduling.candidates import Reservation
from sits_scheduling.explain import NO_STEP
from sits_scheduling.placing import Batch

NOWHERE: Final = Place("")


class Peer(Protocol):
    """Where messages for one front or executor go. `write` never blocks."""

    def write(self, message: bytes) -> Pressure: ...
    def close(self) -> None: ...


@dataclass(slots=True, eq=False)
class Front:
    """A linked front door."""

    peer: Peer
    id: str = ""
    host: str = ""
    numa_node: int = -1
    shares_memory: bool = False
    gone: bool = False


class Attempt(Enum):
    """HEDGE: a second one, since the first takes long. PROBE: a copy for an executor that has
    to show that it is well again."""

    FIRST = 1
    HEDGE = 2
    PROBE = 3


@dataclass(slots=True, eq=False)
class Job:
    """`body` is forwarded as it came, and `header` with its own number in place of `batch_id`,
    which is the front's.

    `first_request` and `header.requests` say which part of the front's batch this is. `model`
    is the table's key, `place` where the payload lies. `twin` is the other attempt while both
    are under way; the one that is `beaten` answers nobody. `cancelled` are positions of requests
    that nobody waits for.
    """

    key: int
    front: Front
    header: BatchHeader
    body: bytes | memoryview = field(repr=False)
    first_request: int = 0
    batch_id: int = 0
    model: str = ""
    place: Place = NOWHERE
    received_ns: int = field(default_factory=now_ns)
    sent_ns: int = 0
    moves: int = 0
    placing: Batch | None = None
    reservation: Reservation | None = None
    failed_on: set[str] = field(default_factory=set)
    cancelled: set[int] = field(default_factory=set)
    attempt: Attempt = Attempt.FIRST
    twin: "Job | None" = field(default=None, repr=False)
    beaten: bool = False
    explanation: str = ""

    def __post_init__(self) -> None:
        header = self.header
        self.batch_id = header.batch_id
        self.model = model_key(header.model, header.version)
        host = header.payload_host
        front = self.front
        node = header.payload_numa_node if host else front.numa_node
        self.place = Place(host or front.host, node, header.payload_device)

    @property
    def executor(self) -> str:
        return self.reservation.executor if self.reservation else ""

    @property
    def is_step(self) -> bool:
        """Of a pipeline: its result goes on to the next one."""
        return self.placing is not None and self.placing.path is not NO_STEP

    def give_up(self, requests: Collection[int]) -> Sequence[int]:
        """Nobody waits any more for these of the front's batch; none at all = for any. Returns
        the positions of those in this part."""
        first, count = self.first_request, self.header.requests
        own = [r - first for r in requests if first <= r < first + count]
        positions = own if requests else range(count)
        self.cancelled.update(positions)
        return positions

    @property
    def given_up(self) -> bool:
        return len(self.cancelled) >= self.header.requests

    def traces(self) -> list[bytes]:
        """Contexts of its sampled requests, as they travel."""
        return [data for data in self.header.trace_contexts[:] if is_sampled(data)]

    def expired(self, now: int) -> bool:
        latest = self.header.latest_deadline_unix_ns
        return latest != 0 and latest <= now

    def release(self) -> None:
        if self.reservation is not None:
            self.reservation.release()
            self.reservation = None


def model_key(name: str, version: str) -> str:
    return f"{name}/{version}"
