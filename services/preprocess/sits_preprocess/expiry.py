"""Requests by the moment at which their time is up."""

import heapq

from sits_preprocess.request import Request

SLOT_NS = 1 << 20
"""Deadlines within such a millisecond share one look at the clock; none is called early."""

_COMPACT_FROM = 64


class Expiry:
    """Open requests that have a deadline. Not thread-safe: the engine's lock covers it.

    A request that is taken out leaves nothing behind but its slot's number, and those are
    swept once they outnumber the slots in use: the memory held is that of what is open, not
    of what was asked for during the longest deadline.
    """

    def __init__(self) -> None:
        self._slots: dict[int, set[Request]] = {}
        self._heap: list[int] = []

    def __len__(self) -> int:
        return sum(map(len, self._slots.values()))

    def add(self, request: Request) -> None:
        """`request` must have a deadline."""
        slot = _slot(request)
        members = self._slots.get(slot)
        if members is None:
            members = self._slots[slot] = set()
            self._push(slot)
        members.add(request)

    def discard(self, request: Request) -> None:
        slot = _slot(request)
        members = self._slots.get(slot)
        if members is not None:
            members.discard(request)
            if not members:
                del self._slots[slot]

    def next_ns(self) -> int | None:
        """When to call `due` next; None when nothing open has a deadline."""
        while self._heap and self._heap[0] not in self._slots:
            heapq.heappop(self._heap)
        return (self._heap[0] + 1) * SLOT_NS if self._heap else None

    def due(self, now: int) -> list[Request]:
        """Take out those whose time is up."""
        found: list[Request] = []
        while (next_ns := self.next_ns()) is not None and next_ns <= now:
            found += self._slots.pop(heapq.heappop(self._heap))
        return found

    def _push(self, slot: int) -> None:
        heapq.heappush(self._heap, slot)
        if len(self._heap) > 2 * len(self._slots) + _COMPACT_FROM:
            self._heap = sorted(self._slots)

    def __repr__(self) -> str:
        return f"<Expiry {len(self)} requests in {len(self._slots)} slots>"


def _slot(request: Request) -> int:
    assert request.deadline is not None, "only requests with a deadline expire"  # noqa: S101
    return request.deadline.unix_ns // SLOT_NS
