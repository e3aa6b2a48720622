"""The newest snapshot, and waiting for a newer one."""

import threading
from collections.abc import Callable

from sits_core.clock import now_ns
from sits_protos.v1.topology_pb2 import TopologySnapshot


class SnapshotStore:
    """Holds one snapshot, so a slow reader finds the newest and never a queue.

    Snapshots are not changed after `put`: all readers share the object.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._newest: TopologySnapshot | None = None
        self._closed = False

    @property
    def newest(self) -> TopologySnapshot | None:
        return self._newest

    def put(self, snapshot: TopologySnapshot) -> None:
        with self._changed:
            self._newest = snapshot
            self._changed.notify_all()

    def newer_than(self, version: int, gone: Callable[[], bool]) -> TopologySnapshot | None:
        """Waits for it. None when the store was closed, or `gone` after a `wake`."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or gone() or self._version() > version)
            ended = self._closed or gone()
            return None if ended else self._newest

    def wake(self) -> None:
        """Lets waiting readers look at their `gone`."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Ends all waiting, now and later."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def age_s(self) -> float | None:
        """Seconds since the newest snapshot was made; None before the first."""
        newest = self._newest
        return None if newest is None else (now_ns() - newest.published_unix_ns) / 1e9

    def _version(self) -> int:
        return 0 if self._newest is None else self._newest.version

    def __repr__(self) -> str:
        return f"<SnapshotStore version={self._version()} closed={self._closed}>"
