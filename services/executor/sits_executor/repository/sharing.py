"""A loaded backend and who uses it: its own instances, and pipelines that it is a step of."""

import threading
from queue import SimpleQueue

from sits_executor.backends.base import Backend


class Shared:
    """Closes the backend when the last user has let go. Its instances are the first one.

    Pipelines take turns: as many of them run it at once as it has instances.
    """

    def __init__(self, backend: Backend, instances: int) -> None:
        self.backend, self.instances = backend, instances
        self._users = 1
        self._lock = threading.Lock()
        self._turns: SimpleQueue[None] = SimpleQueue()
        for _ in range(instances):
            self._turns.put(None)

    def take(self) -> bool:
        """One more user. False when it is closed, or closing."""
        with self._lock:
            if self._users == 0:
                return False
            self._users += 1
            return True

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            self.backend.close()

    @property
    def closed(self) -> bool:
        return self._users == 0

    def begin(self) -> None:
        """A run in a pipeline; waits for its turn. `end` must follow."""
        self._turns.get()

    def end(self) -> None:
        self._turns.put(None)

    def __repr__(self) -> str:
        return f"<Shared {self._users} users, {self._turns.qsize()} turns free>"
