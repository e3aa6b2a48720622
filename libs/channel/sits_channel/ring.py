"""A pair of rings in one piece of shared memory, one for each direction of a link.

The C core is compiled where the package was built with a compiler; `available` tells.
"""

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from sits_channel.pool_files import PAGE_BYTES

if TYPE_CHECKING:
    from sits_channel._ring import Reader, Writer

LAYOUT: Final = 1
"""Of the control page and of the records: both ends must have the same."""
CAPACITY_BYTES: Final = 1 << 20
"""Of each direction. A batch of 32 requests of 1 KB fills 3 % of it, and it stays in the
processor's second level cache."""
SPIN_NS: Final = 5_000
"""How long a side looks before it sleeps: about what falling asleep and being woken costs."""


class RingBroken(Exception):
    """The peer wrote something that cannot be; nothing of the ring is believed any more."""


@dataclass(frozen=True, slots=True)
class RingEnd:
    """What one process has of a pair: it writes into one ring and reads from the other."""

    writer: "Writer"
    reader: "Reader"

    def write(self, message: bytes) -> bool:
        """Waits for space. False once closed. Raises `RingBroken`."""
        try:
            return self.writer.write(message)
        except ValueError as error:
            raise RingBroken(str(error)) from None

    def messages(self) -> Iterator[bytes]:
        """Waits for each; ends once closed and read empty. Raises `RingBroken`."""
        while messages := self._read():
            messages.reverse()
            while messages:  # none is kept while the next is waited for: they can be large
                yield messages.pop()

    def _read(self) -> list[bytes]:
        try:
            return self.reader.read()
        except ValueError as error:
            raise RingBroken(str(error)) from None

    def close(self) -> None:
        """Nothing is written any more, nobody waits any more; what came can still be read."""
        self.writer.close()
        self.reader.close()


@cache
def available() -> bool:
    """Whether this installation has the compiled core."""
    try:
        import sits_channel._ring  # noqa: F401 - whether it can be loaded is the question
    except ImportError:
        return False
    return True


def file_bytes(capacity: int) -> int:
    """A page for the file's own header, then both directions, each with a control page."""
    return PAGE_BYTES + 2 * (PAGE_BYTES + capacity)


def client_end(memory: mmap.mmap, capacity: int, max_message_bytes: int) -> RingEnd:
    """The end that made the memory. Raises `ValueError` for a capacity that cannot be."""
    return _end(memory, capacity, max_message_bytes, _starts(capacity))


def server_end(memory: mmap.mmap, capacity: int, max_message_bytes: int) -> RingEnd:
    """The other end. Raises `ValueError` for a capacity that cannot be."""
    return _end(memory, capacity, max_message_bytes, _starts(capacity)[::-1])


def _starts(capacity: int) -> tuple[int, int]:
    return PAGE_BYTES, PAGE_BYTES + PAGE_BYTES + capacity


def _end(
    memory: mmap.mmap, capacity: int, max_message_bytes: int, starts: tuple[int, int]
) -> RingEnd:
    from sits_channel._ring import Reader, Writer  # absent where nothing could be compiled

    outgoing, incoming = starts
    return RingEnd(
        Writer(memory, outgoing, capacity, SPIN_NS),
        Reader(memory, incoming, capacity, max_message_bytes, SPIN_NS),
    )
