"""A link that several transfers share: each of n gets an n-th of the bandwidth."""

import heapq
from collections.abc import Callable
from itertools import count

from sits_sim.clock import Clock


class SharedLink:
    """Processor sharing, as fair networks and several flows over one NIC do.

    Kept in virtual time: it advances by the bytes that each transfer was given, so that a
    transfer is done when virtual time reaches its start plus its size, whoever comes or
    goes meanwhile. `carried` counts bytes.
    """

    def __init__(self, clock: Clock, bytes_per_ns: float) -> None:
        self._clock, self.bytes_per_ns = clock, bytes_per_ns
        self._flows: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._virtual = 0.0
        self._seen_ns = 0
        self._event = 0
        self.carried = 0.0

    def __repr__(self) -> str:
        return f"<SharedLink {len(self._flows)} transfers>"

    def __len__(self) -> int:
        return len(self._flows)

    def send(self, size_bytes: float, done: Callable[[], None]) -> None:
        """`done` is called when the last byte has left."""
        self._advance()
        self.carried += size_bytes
        heapq.heappush(self._flows, (self._virtual + size_bytes, next(self._order), done))
        self._expect_next()

    def _advance(self) -> None:
        now = self._clock.now_ns
        if self._flows:
            self._virtual += (now - self._seen_ns) * self.bytes_per_ns / len(self._flows)
        self._seen_ns = now

    def _expect_next(self) -> None:
        self._event += 1
        if not self._flows:
            return
        missing = max(0.0, self._flows[0][0] - self._virtual)
        delay_ns = -int(-missing * len(self._flows) / self.bytes_per_ns // 1)
        event = self._event
        self._clock.after(delay_ns, lambda: self._due(event))

    def _due(self, event: int) -> None:
        if event != self._event:
            return  # somebody came or went meanwhile
        self._advance()
        finished: list[Callable[[], None]] = []
        while self._flows and self._flows[0][0] <= self._virtual + 1e-6:
            finished.append(heapq.heappop(self._flows)[2])
        self._expect_next()
        for done in finished:
            done()
