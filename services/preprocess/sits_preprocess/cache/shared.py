"""The second level: answers that front doors keep for each other, in Redis.

Never on a request's own thread: a request waits for it no longer than `wait_s`, whatever Redis
does, and not at all for a second after that was not enough.
"""

from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import Final, NamedTuple

from sits_core.clock import now_ns
from sits_core.registry import AnswerStore, RegistryUnavailable
from sits_preprocess.cache.memory import Kept
from sits_preprocess.cache.metrics import CacheMetrics
from sits_preprocess.cache.records import record_of
from sits_preprocess.cache.worker import Worker
from sits_preprocess.request import Request
from sits_preprocess.timer import Timer
from sits_protos.v1.registry_pb2 import CachedAnswer

MAX_ANSWER_BYTES: Final = 1 << 20
"""Larger ones stay in the first level: Redis is no place for them."""
AT_ONCE: Final = 16
MAX_WAITING: Final = 1024
"""Look-ups, and answers to be written; beyond them Redis is not asked, and answers are dropped."""
PAUSE_NS: Final = 1_000_000_000

Found = Callable[[Sequence[tuple[Request, CachedAnswer | None]]], None]


class Asked(NamedTuple):
    """A request whose answer may be there."""

    request: Request
    digest: bytes


class Shared:
    """Safe from any thread. `found` gets every request that `ask` took, once, from a thread of
    ours, unless it was withdrawn."""

    def __init__(
        self,
        store: AnswerStore,
        max_bytes: int,
        wait_s: float,
        metrics: CacheMetrics,
        clock: Callable[[], int] = now_ns,
    ) -> None:
        self._store, self._wait_ns, self._metrics, self._clock = (
            store, int(wait_s * 1e9), metrics, clock,
        )  # fmt: skip
        self.found: Found = lambda _: None
        self._open: dict[Request, bytes] = {}
        self._room = Room(max_bytes)
        self._reader = Worker("cache reader", self._read, MAX_WAITING, AT_ONCE)
        self._writer = Worker("cache writer", self._write, MAX_WAITING, AT_ONCE)
        self._timer = Timer("cache timer")
        self._paused_until_ns = 0

    def start(self) -> None:
        for part in (self._timer, self._reader, self._writer):
            part.start()

    def stop(self) -> None:
        """Whoever still waits is told that nothing was found."""
        for part in (self._reader, self._writer, self._timer):
            part.stop()
        self._nothing(list(self._open))
        self._store.close()

    def ask(self, asked: Sequence[Asked]) -> bool:
        """False when it is not worth it now: `found` will hear nothing of them."""
        now = self._clock()
        if now < self._paused_until_ns:
            return False
        self._open.update(asked)
        if not self._reader.put(asked):
            for one in asked:
                self._open.pop(one.request, None)
            return False
        self._timer.at(now + self._wait_ns, partial(self._late, [one.request for one in asked]))
        return True

    def withdraw(self, request: Request) -> bool:
        """Nobody waits for it any more. False when `found` has it, or will never."""
        return self._open.pop(request, None) is not None

    def put(self, digest: bytes, answer: Kept) -> None:
        """Written soon, if there is room."""
        if answer.size_bytes > MAX_ANSWER_BYTES:
            self._metrics.unkept("redis_too_large")
        elif self._clock() < self._paused_until_ns or not self._writer.put([(digest, answer)]):
            self._metrics.unkept("redis_busy")

    def _read(self, asked: Sequence[Asked]) -> None:
        wanted = [one for one in asked if one.request in self._open]
        if not wanted:
            return
        try:
            records = self._store.read([one.digest for one in wanted])
        except RegistryUnavailable:
            self._pause()
            records = [None] * len(wanted)
        pairs = zip(wanted, records, strict=True)
        here = [(one.request, record) for one, record in pairs if self.withdraw(one.request)]
        if here:
            self.found(here)

    def _late(self, requests: Sequence[Request]) -> None:
        if any(request in self._open for request in requests):
            self._pause()
            self._nothing(requests)

    def _nothing(self, requests: Sequence[Request]) -> None:
        here = [(request, None) for request in requests if self.withdraw(request)]
        if here:
            self.found(here)

    def _write(self, answers: Sequence[tuple[bytes, Kept]]) -> None:
        now = self._clock()
        records: list[tuple[CachedAnswer, int]] = []
        for digest, answer in answers:
            ttl_ms = (answer.until_ns - now) // 1_000_000
            if ttl_ms <= 0:
                self._metrics.unkept("redis_over")
            elif self._room.take(answer.size_bytes, answer.until_ns, now):
                records.append((record_of(digest, answer), ttl_ms))
            else:
                self._metrics.unkept("redis_full")
        if not records:
            return
        try:
            self._store.write(records)
        except RegistryUnavailable:
            self._pause()
            self._metrics.unkept("redis_gone")

    def _pause(self) -> None:
        self._paused_until_ns = self._clock() + PAUSE_NS

    def __repr__(self) -> str:
        return f"<Shared {len(self._open)} asked, {self._room!r}>"


class Room:
    """How much one front door has in Redis: what it wrote and has not expired there. A server
    that is used for leases too must not be filled by any number of answers.

    Known weakness: a front door that starts again does not know what it wrote before. Not
    thread-safe: only the writer asks.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._taken: list[tuple[int, int]] = []
        self._bytes = 0

    def take(self, size_bytes: int, until_ns: int, now: int) -> bool:
        while self._taken and self._taken[0][0] <= now:
            self._bytes -= heappop(self._taken)[1]
        if self._bytes + size_bytes > self._max_bytes:
            return False
        self._bytes += size_bytes
        heappush(self._taken, (until_ns, size_bytes))
        return True

    def __repr__(self) -> str:
        return f"<Room {self._bytes} of {self._max_bytes} bytes>"
