"""The threads that run batches of one model version, one for each instance."""

import threading
from collections.abc import Callable

import structlog

from sits_executor.batch import Batch
from sits_executor.queue import BatchQueue

log = structlog.get_logger()


class Instances:
    """Each takes the next batch when it has finished one.

    Closing the queue lets what was accepted finish; then the last thread calls `closed`.
    """

    def __init__(
        self,
        name: str,
        count: int,
        queue: BatchQueue,
        run: Callable[[Batch], None],
        closed: Callable[[], None],
    ) -> None:
        self._queue, self._run, self._closed = queue, run, closed
        self._alive = count
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._work, name=f"{name} #{index}", daemon=True)
            for index in range(count)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        while (batch := self._queue.read()) is not None:
            try:
                self._run(batch)
            except Exception:  # the thread must outlive whatever escaped
                log.exception("instance.broken", batch=repr(batch))
        with self._lock:
            self._alive -= 1
            last = self._alive == 0
        if last:
            self._closed()

    def __repr__(self) -> str:
        return f"<Instances {self._alive} alive, {self._queue!r}>"
