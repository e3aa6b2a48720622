"""Counters of several processes over the last minute, and what they grew by. Pure."""

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

SPACING_NS: Final = 5_000_000_000
"""Points closer than this replace each other, so that a minute is a dozen points."""
KEPT: Final = 14

Key = tuple[str, ...]
"""Name of a metric and some of its label values."""
Counters = Mapping[Key, float]

LABELS: Final[Mapping[str, tuple[str, ...]]] = {
    "sits_requests_total": ("tenant", "outcome"),
    "sits_request_seconds_bucket": ("tenant", "le"),
    "sits_batch_closed_total": ("reason",),
    "sits_batch_rows_sum": (),
    "sits_batch_rows_count": (),
    "sits_dispatcher_batches_total": ("model",),
    "sits_dispatcher_rows_total": ("model",),
}
"""The counters that are followed, and the labels by which they are told apart."""


def summed(samples: Iterable[tuple[str, Mapping[str, str], float]]) -> dict[Key, float]:
    """The counters that are followed, summed over all other labels."""
    totals: dict[Key, float] = defaultdict(float)
    for name, labels, value in samples:
        kept = LABELS.get(name)
        if kept is not None:
            totals[(name, *(labels.get(label, "") for label in kept))] += value
    return dict(totals)


class Point(NamedTuple):
    at_ns: int
    counters: Counters


class Track:
    """One process: what it counted at some points of time, oldest first."""

    def __init__(self) -> None:
        self._points: deque[Point] = deque(maxlen=KEPT)

    def add(self, at_ns: int, counters: Counters) -> None:
        points = self._points
        if len(points) >= 2 and points[-1].at_ns - points[-2].at_ns < SPACING_NS:
            points.pop()
        points.append(Point(at_ns, counters))

    def growth(self, window_ns: int) -> tuple[int, dict[Key, float]]:
        """Nanoseconds and increase of each counter over about `window_ns`; 0 and nothing when
        the process was seen only once."""
        if len(self._points) < 2:
            return 0, {}
        last, first = self._points[-1], self._before(window_ns)
        before = first.counters
        grown = {key: _grown(before.get(key, 0.0), now) for key, now in last.counters.items()}
        return last.at_ns - first.at_ns, grown

    def _before(self, window_ns: int) -> Point:
        """The newest point that is at least `window_ns` old, else the oldest."""
        points, end_ns = self._points, self._points[-1].at_ns - window_ns
        for older, newer in pairwise(points):
            if newer.at_ns > end_ns:
                return older
        return points[0]

    @property
    def newest(self) -> Counters:
        return self._points[-1].counters if self._points else {}


def _grown(before: float, now: float) -> float:
    """A counter that fell began anew, as that of an executor does when its link does."""
    return now - before if now >= before else now


class Tracks:
    """The processes of a mesh by id: an id lives as long as the process and its counters."""

    def __init__(self) -> None:
        self._tracks: dict[str, Track] = {}

    def keep(self, ids: Collection[str]) -> None:
        """Forget all others."""
        self._tracks = {id_: track for id_, track in self._tracks.items() if id_ in ids}

    def add(self, id_: str, at_ns: int, counters: Counters) -> None:
        self._tracks.setdefault(id_, Track()).add(at_ns, counters)

    def rates(self, window_s: float) -> tuple[float, dict[Key, float]]:
        """Seconds looked at (of the longest track), and increase a second over all processes."""
        rates: dict[Key, float] = defaultdict(float)
        longest_ns = 0
        for track in self._tracks.values():
            span_ns, grown = track.growth(int(window_s * 1e9))
            longest_ns = max(longest_ns, span_ns)
            for key, increase in grown.items():
                rates[key] += increase * 1e9 / span_ns
        return longest_ns / 1e9, dict(rates)

    def totals(self) -> dict[Key, float]:
        """What all processes together counted since they started."""
        totals: dict[Key, float] = defaultdict(float)
        for track in self._tracks.values():
            for key, value in track.newest.items():
                totals[key] += value
        return dict(totals)


class Bucket(NamedTuple):
    """`upto` seconds and less were seen `seen` times (or times a second)."""

    upto: float
    seen: float


def buckets(counters: Counters, name: str, *labels: str) -> list[Bucket]:
    """A histogram in order, summed over tenants unless `labels` names one."""
    found: dict[float, float] = defaultdict(float)
    for key, value in counters.items():
        if key[0] == name and key[1 : 1 + len(labels)] == labels:
            found[float(key[-1])] += value
    return [Bucket(upto, found[upto]) for upto in sorted(found)]


def quantile(histogram: Sequence[Bucket], share: float) -> float | None:
    """Seconds within which `share` of all were seen: linear inside a bucket, and at most the
    last finite bound. None when there were none."""
    if not histogram or histogram[-1].seen <= 0:
        return None
    wanted, lower = share * histogram[-1].seen, Bucket(0.0, 0.0)
    for upper in histogram:
        if upper.seen >= wanted and upper.upto != float("inf"):
            part = (wanted - lower.seen) / max(upper.seen - lower.seen, 1e-12)
            return lower.upto + (upper.upto - lower.upto) * part
        if upper.upto != float("inf"):
            lower = upper
    return lower.upto


def within(histogram: Sequence[Bucket], limit_s: float) -> float:
    """How many were seen within `limit_s`; linear inside a bucket, exact at its bounds."""
    lower = Bucket(0.0, 0.0)
    for upper in histogram:
        if upper.upto >= limit_s:
            if upper.upto == float("inf"):  # nothing is known of where in it they lie
                return lower.seen
            part = (limit_s - lower.upto) / (upper.upto - lower.upto)
            return lower.seen + (upper.seen - lower.seen) * part
        lower = upper
    return lower.seen
