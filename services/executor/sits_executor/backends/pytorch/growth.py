"""The thread that captures graphs on demand, so that nobody waits for them."""

import threading
from collections.abc import Callable
from queue import Queue
from typing import Generic, TypeVar

import structlog

log = structlog.get_logger()

K = TypeVar("K")


def _nothing(_key: object) -> None:
    return None


class Growth(Generic[K]):
    """Starts with the first wish. `close` lets the one under way finish, and drops the others
    and `grow`: who made this may go without the collector."""

    def __init__(self, name: str, grow: Callable[[K], None]) -> None:
        self._name, self._grow = name, grow
        self._wishes: Queue[K | None] = Queue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def want(self, key: K) -> None:
        if self._closed:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self._wishes.put(key)

    def settle(self) -> None:
        """Wait until every wish so far has been looked at."""
        self._wishes.join()

    def close(self) -> None:
        self._closed = True
        self._wishes.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._grow = _nothing

    def _work(self) -> None:
        while (key := self._wishes.get()) is not None and not self._closed:
            try:
                self._grow(key)
            except Exception:  # the thread must outlive whatever escaped
                log.exception("graph.broken")
            finally:
                self._wishes.task_done()
