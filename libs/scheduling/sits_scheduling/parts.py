"""How several senders divide what one receiver takes at once."""

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

T = TypeVar("T", bound=Hashable)

QUIET_NS: Final = 5_000_000_000
"""Who has sent nothing for so long holds one place only."""
LOOK_NS: Final = 1_000_000_000


class Parts(Generic[T]):
    """Senders that send hold equal parts, rounded up; each quiet one may send one at a time, so
    that it is heard when it begins. So at most one more a sender is there than the receiver
    announced.

    Equal, and not by use: a part that follows use stays with whoever has it, since who may have
    more unanswered sends more. Looked at only when something is sent: where nothing is sent
    nothing changes, and the last one that did keeps its part. Weakness: one that sends little,
    but often, holds as much as the others.

    Not thread-safe, but `used` may be called without the lock that covers the rest.
    """

    def __init__(self) -> None:
        self._last_ns: dict[T, int] = {}
        self._quiet: frozenset[T] = frozenset()
        self._look_ns = 0

    def __repr__(self) -> str:
        return f"<Parts {len(self._last_ns)} senders, {len(self._quiet)} quiet>"

    def join(self, sender: T, now_ns: int) -> None:
        """It is there, and counts as one that sends."""
        self._last_ns[sender] = now_ns

    def leave(self, sender: T) -> None:
        self._last_ns.pop(sender, None)
        self._quiet -= {sender}

    def used(self, sender: T, now_ns: int) -> bool:
        """It sent something. True when it is time to `look`."""
        self._last_ns[sender] = now_ns
        return now_ns >= self._look_ns or sender in self._quiet

    def look(self, now_ns: int) -> bool:
        """Who is quiet now? True when parts changed by it."""
        self._look_ns = now_ns + LOOK_NS
        quiet = frozenset(s for s, at in self._last_ns.items() if now_ns - at > QUIET_NS)
        changed = quiet != self._quiet
        self._quiet = quiet
        return changed

    def of(self, sender: T, total: int) -> int:
        """What `sender` may have of `total`; nothing of nothing."""
        if sender in self._quiet:
            return min(1, total)
        return -(-total // max(1, len(self._last_ns) - len(self._quiet)))
