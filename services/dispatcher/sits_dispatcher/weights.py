"""Follows the affinity weights that topology services publish through Redis."""

import threading
from collections.abc import Iterable

from sits_core.clock import now_ns
from sits_core.tracing import TraceContext
from sits_protos.v1.topology_pb2 import TopologySnapshot
from sits_scheduling.affinity import AffinityMap

UNKNOWN_AGE_S = -1.0


class Weights:
    """The newest snapshot of each host. Keeps the last known one when Redis is away."""

    def __init__(self) -> None:
        self._snapshots: dict[str, TopologySnapshot] = {}
        self._lock = threading.Lock()
        self.origins: tuple[TraceContext, ...] = ()

    def update(self, snapshots: Iterable[TopologySnapshot]) -> AffinityMap | None:
        """The new map, or None when nothing changed."""
        with self._lock:
            newer = [s for s in snapshots if self._is_newer(s)]
            if not newer:
                return None
            self._snapshots |= {s.host: s for s in newer}
            contexts = (TraceContext.from_wire(s.trace_context) for s in self._snapshots.values())
            self.origins = tuple(c for c in contexts if c is not None)
            return AffinityMap({host: _weights(s) for host, s in self._snapshots.items()})

    def age_s(self) -> float:
        """Age of the newest snapshot, -1 when there never was one."""
        newest = max((s.published_unix_ns for s in self._snapshots.values()), default=0)
        return (now_ns() - newest) / 1e9 if newest else UNKNOWN_AGE_S

    def snapshots(self) -> list[TopologySnapshot]:
        return list(self._snapshots.values())

    def _is_newer(self, snapshot: TopologySnapshot) -> bool:
        known = self._snapshots.get(snapshot.host)
        return known is None or snapshot.published_unix_ns > known.published_unix_ns


def _weights(snapshot: TopologySnapshot) -> dict[tuple[str, str], float]:
    # `from` is a Python keyword, so the field needs getattr.
    return {(getattr(w, "from"), w.to): w.weight for w in snapshot.weights}
