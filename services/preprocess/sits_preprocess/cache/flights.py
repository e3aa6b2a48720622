"""Equal requests under way at the same time: one is computed, the others wait for its answer."""

import threading
from dataclasses import dataclass, field

from sits_preprocess.request import Request
from sits_scheduling.batching import DEFAULT_PRIORITY


@dataclass(slots=True)
class _Flight:
    leader: Request
    others: list[Request] = field(default_factory=list)


class Flights:
    """Safe from any thread. Nobody waits for a request that may take longer than it has itself,
    that is less urgent, or another tenant's, whose turn may come later."""

    def __init__(self) -> None:
        self._flights: dict[bytes, _Flight] = {}
        self._waiting: dict[Request, bytes] = {}
        self._lock = threading.Lock()

    def leads(self, request: Request, digest: bytes) -> bool:
        """Whether it is to be computed; else it waits for `landed`."""
        with self._lock:
            flight = self._flights.get(digest)
            if flight is None:
                self._flights[digest] = _Flight(request)
                return True
            if not _may_wait(request, flight.leader):
                return True
            flight.others.append(request)
            self._waiting[request] = digest
            return False

    def landed(self, request: Request, digest: bytes) -> list[Request]:
        """It is answered, one way or another; those that waited for it."""
        with self._lock:
            flight = self._flights.get(digest)
            if flight is None or flight.leader is not request:
                return []
            del self._flights[digest]
            for other in flight.others:
                del self._waiting[other]
            return flight.others

    def leave(self, request: Request) -> bool:
        """It waits no longer. False when it did not."""
        with self._lock:
            digest = self._waiting.pop(request, None)
            if digest is None:
                return False
            self._flights[digest].others.remove(request)
            return True

    def __repr__(self) -> str:
        return f"<Flights {len(self._flights)}, {len(self._waiting)} wait>"


def _may_wait(request: Request, leader: Request) -> bool:
    """The leader's deadline ends the wait, so that no clock of its own is needed."""
    mine, its = request.deadline_ns, leader.deadline_ns
    in_time = not mine or (its and its <= mine)
    as_soon = request.tenant == leader.tenant and _urgency(request) >= _urgency(leader)
    return bool(in_time) and as_soon


def _urgency(request: Request) -> int:
    """1 is the most urgent."""
    return request.priority or DEFAULT_PRIORITY
