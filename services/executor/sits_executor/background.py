"""A few daemon threads for slow work, so that a load under way never delays the exit."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future


class Background:
    """Runs what is submitted in order of arrival, on `threads` threads."""

    def __init__(self, threads: int, name: str) -> None:
        self._work: queue.SimpleQueue[tuple[Callable[[], None], Future[None]]] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._serve, name=f"{name} {index}", daemon=True)
            for index in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], None]) -> "Future[None]":
        future: Future[None] = Future()
        self._work.put((work, future))
        return future

    def _serve(self) -> None:
        while True:
            work, future = self._work.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                work()
            except Exception as error:  # noqa: BLE001 - handed to whoever waits
                future.set_exception(error)
            else:
                future.set_result(None)
