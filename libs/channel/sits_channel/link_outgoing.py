"""What a link still has to send, and the way it goes: gRPC stream or ring."""

from collections.abc import Iterator

from sits_channel.bounded import BoundedChannel, Pressure
from sits_channel.ring import RingEnd


class Outgoing(BoundedChannel[bytes]):
    """Writers never wait. While nothing else does, they put their message into the ring
    themselves, which saves a thread's waking; what does not fit waits here, in order.
    """

    def __init__(self, capacity: int, max_bytes: int, *, decided: bool = True) -> None:
        """Not `decided`: messages are kept until `decide` says which way they go."""
        super().__init__(capacity, len, max_bytes)
        self._decided = decided
        self._ring: RingEnd | None = None

    def decide(self, ring: RingEnd | None) -> None:
        """All messages go through `ring`; None: over the stream."""
        with self._ready:
            self._decided, self._ring = True, ring
            self._ready.notify_all()

    def write(self, item: bytes) -> Pressure:
        with self._ready:
            # Behind what waits, even if it would fit: nothing overtakes.
            if self._ring is not None and not self._items and self._ring.writer.try_write(item):
                return Pressure(True, 0.0)
            return super().write(item)

    def messages(self) -> Iterator[bytes]:
        """What the stream shall carry, for the one thread that feeds it: nothing while there
        is a ring, which that thread then feeds. Raises `RingBroken`."""
        with self._ready:
            self._ready.wait_for(lambda: self._decided or self._closed)
            ring = self._ring
        if ring is not None:
            self._feed(ring)
        yield from iter(self.read, None)

    def close(self, *, discard: bool = False) -> None:
        super().close(discard=discard)
        with self._ready:
            ring, self._ring = self._ring, None
        if ring is not None:
            ring.writer.close()

    def _feed(self, ring: RingEnd) -> None:
        while self._feed_one(ring):
            pass

    def _feed_one(self, ring: RingEnd) -> bool:
        """False once closed."""
        message = self._first()
        if message is None or not ring.write(message):
            return False
        # It kept its place until it was written: writers saw that something waits.
        self._drop_first()
        return True

    def _first(self) -> bytes | None:
        with self._ready:
            self._ready.wait_for(lambda: self._items or self._closed)
            return self._items[0] if self._items else None

    def _drop_first(self) -> None:
        with self._ready:
            if self._items:  # not discarded meanwhile
                self._weight -= len(self._items.popleft())
