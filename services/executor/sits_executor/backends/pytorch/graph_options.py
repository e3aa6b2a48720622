"""Which graphs of a model are captured: read from the parameters of config.pbtxt."""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final, Self

from sits_executor.backends.base import LoadError, LoadSpec

_HALFWAY_FROM: Final = 16
"""A smaller run takes about as long as its kernels take to start: padding costs it little."""


@dataclass(frozen=True)
class GraphOptions:
    """`buckets` are the row counts that are captured, ascending; None = powers of two up to
    max_batch_size and, above 16, halfway between; empty = no graphs. `after` runs of a shape
    without a graph, one is captured. At most `limit` graphs a stream; the one unused for longest
    makes room."""

    buckets: tuple[int, ...] | None = None
    after: int = 3
    limit: int = 64

    @classmethod
    def of(cls, spec: LoadSpec) -> Self:
        """Parameters `graph_buckets` ("1,8,32" or "none"), `graph_after`, `graph_limit`."""
        text = spec.parameter("graph_buckets")
        return cls(
            _buckets(text) if text else None,
            _count(spec, "graph_after", cls.after),
            _count(spec, "graph_limit", cls.limit),
        )

    def up_to(self, max_rows: int) -> tuple[int, ...]:
        """Of a model that takes so many rows; (1,) of one that does not batch."""
        if self.buckets is None:
            most = max(max_rows, 1)
            powers = [1 << power for power in range(most.bit_length())]
            halfway = [3 * power // 2 for power in powers if power >= _HALFWAY_FROM]
            return tuple(sorted({*(rows for rows in powers + halfway if rows < most), most}))
        return tuple(bucket for bucket in self.buckets if bucket <= max(max_rows, 1))


def bucket_of(rows: int, buckets: tuple[int, ...]) -> int | None:
    """The smallest that holds `rows`; None when none does."""
    place = bisect_left(buckets, rows)
    return buckets[place] if place < len(buckets) else None


def _buckets(text: str) -> tuple[int, ...]:
    if text == "none":
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise LoadError(f"parameter 'graph_buckets' is '{text}', expected \"1,8,32\" or \"none\"")
    return tuple(sorted({int(part) for part in parts}))


def _count(spec: LoadSpec, key: str, default: int) -> int:
    text = spec.parameter(key, str(default))
    if not text.isdecimal() or int(text) < 1:
        raise LoadError(f"parameter '{key}' is '{text}', expected a number above 0")
    return int(text)
