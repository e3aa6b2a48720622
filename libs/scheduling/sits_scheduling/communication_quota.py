"""Holds collective traffic to a share of each link, so that requests keep theirs (D9)."""

import math
from typing import Final

NS_PER_S: Final = 1_000_000_000
SHARE: Final = 0.4


class LinkQuota:
    """How long each piece of collective traffic waits before it may be sent on one link.

    Rule: while requests use the link, collectives get `share` of its bandwidth, or what is
    left when requests are given `headroom` times what they use, whichever is more; as
    virtual scheduling (the GCRA of ATM), so that no timer is needed. While no requests
    are seen for `quiet_ns`, collectives get all of it.

    Weakness: a piece on the way cannot be stopped; a request waits for it, so pieces should
    be small (1 MB at 8 GB/s is 0.13 ms).
    """

    def __init__(
        self,
        bytes_per_s: float,
        share: float = SHARE,
        headroom: float = 2.0,
        quiet_ns: int = NS_PER_S // 20,
    ) -> None:
        self._bytes_per_s, self._share, self._headroom = bytes_per_s, share, headroom
        self._quiet_ns = quiet_ns
        self._due_ns = 0
        self._requested_ns = self._decayed_ns = -quiet_ns
        self._used = 0.0

    def __repr__(self) -> str:
        return f"<LinkQuota requests use {self._used:.0%}>"

    def request(self, size_bytes: int, now_ns: int) -> None:
        """Request traffic was put on the link."""
        self._decay(now_ns)
        self._used += size_bytes / self._bytes_per_s * NS_PER_S / self._quiet_ns
        self._requested_ns = now_ns

    def wait_ns(self, size_bytes: int, now_ns: int) -> int:
        """How long to hold a piece of a collective back; the call takes its place in line."""
        at = max(now_ns, self._due_ns)
        self._due_ns = at + int(size_bytes / (self._bytes_per_s * self.part(now_ns)) * NS_PER_S)
        return at - now_ns

    def part(self, now_ns: int) -> float:
        """The part of the link that collectives may use now."""
        if now_ns - self._requested_ns >= self._quiet_ns:
            return 1.0
        self._decay(now_ns)
        return max(self._share, 1.0 - self._headroom * self._used)

    def _decay(self, now_ns: int) -> None:
        """`_used` is the part of the link that requests used over about `quiet_ns`."""
        passed = max(0, now_ns - self._decayed_ns)
        self._used *= math.exp(-passed / self._quiet_ns)
        self._decayed_ns = max(self._decayed_ns, now_ns)
