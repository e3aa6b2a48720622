"""The one thread that drives a device: lands what is done, launches what is next, never waits
for a single run.

A batch is a micro-batch already, and the point where others get their turn. Bound: a batch that
is more urgent than everything waiting is launched at once when its model has a stream free, else
as soon as the first run under way that holds what it needs ends, whatever else waits. It never
waits for two runs one after the other.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from sits_executor.backends.streamed import DeviceLost
from sits_executor.safe import safe_cause
from sits_executor.streams.model import StreamModel
from sits_executor.streams.runner import Launched
from sits_executor.streams.shares import Shares
from sits_scheduling.time_slices import PERIOD_NS

log = structlog.get_logger()

STREAMS: Final = 32
_EARLY_S: Final = 100e-6
"""Waking up may take this long; the rest of the wait is spent looking."""
_CAUTION: Final = 0.9
"""A run may be shorter than runs were lately."""


@dataclass(slots=True, eq=False)
class Running:
    model: StreamModel
    launched: Launched
    started_ns: int


class StreamScheduler:
    """`lost` is called once, when the device failed for good or a run takes over `hang_s`."""

    def __init__(
        self,
        *,
        streams: int = STREAMS,
        hang_s: float = 60.0,
        lost: Callable[[DeviceLost], object] = lambda _: None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._streams, self._hang_ns, self._clock_ns = streams, int(hang_s * 1e9), clock_ns
        self._told_lost = lost
        self.models: tuple[StreamModel, ...] = ()
        self.shares = Shares(streams, clock_ns())
        self.running: list[Running] = []
        self.lost: DeviceLost | None = None
        self._stopped = False
        self._awake = threading.Event()
        self._changes = threading.Lock()
        self._joining: list[StreamModel] = []
        self._thread: threading.Thread | None = None

    def attach(self, model: StreamModel) -> None:
        """Serve it from now on, until its queue is closed and empty."""
        model.queue.written = self.wake
        model.backend.freed = self.wake
        with self._changes:
            self._joining.append(model)
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="streams", daemon=True)
                self._thread.start()
        self.wake()

    def wake(self) -> None:
        if not self._awake.is_set():
            self._awake.set()

    def stop(self) -> None:
        """Ends the thread; what runs on the device is let go of."""
        self._stopped = True
        self.wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def lose(self, error: DeviceLost) -> None:
        """Somebody else saw that the device is lost; the thread ends what it holds."""
        with self._changes:
            first, self.lost = self.lost is None, self.lost or error
        if self._thread is not None:
            self.wake()
        elif first:
            self._lose(error)

    def turn(self) -> bool:
        """One round of looking and launching. Whether anything happened."""
        self._join()
        try:
            if self.lost is not None:
                raise self.lost
            moved = self._land()
            while self._launch():
                moved = True
            moved = self._stage() or moved
        except DeviceLost as error:
            self._lose(error)
            return False
        self.shares.look(self._clock_ns())
        self._leave()
        return moved

    def _land(self) -> bool:
        """Answer what is done."""
        done = [run for run in self.running if self._is_done(run)]
        for run in done:
            self.running.remove(run)
            took_ns = self._clock_ns() - run.started_ns
            self.shares.used(run.model, took_ns / 1e9)
            run.model.land(run.launched, took_ns / 1e9)
        return bool(done)

    def _is_done(self, run: Running) -> bool:
        try:
            if run.launched.flight.done():
                return True
        except DeviceLost:
            raise
        except Exception as error:  # noqa: BLE001 - models raise anything
            self.running.remove(run)
            run.model.failed(run.launched, error)
            return False
        if self._clock_ns() - run.started_ns > self._hang_ns:
            raise DeviceLost(f"a run of '{run.model.name}' has not ended in time")
        return False

    def _launch(self) -> bool:
        """Start the one batch whose turn it is. False = nothing may start."""
        if len(self.running) >= self._streams:
            return False
        model = self.shares.pick()
        if not isinstance(model, StreamModel):
            return False
        waiting = model.head()
        started_ns = self._clock_ns()
        launched = model.start()
        if launched is not None:
            self.running.append(Running(model, launched, started_ns))
            return True
        return model.head() != waiting

    def _stage(self) -> bool:
        """Bring what comes next into host memory while the device is busy."""
        return any(model.stage_ahead() for model in self.models if self.running)

    def _lose(self, error: DeviceLost) -> None:
        """Answer everything that was under way; what waits is refused by who is told."""
        first, self._stopped, self.lost = not self._stopped, True, error
        for run in self.running:
            run.model.abandon(run.launched)
        self.running.clear()
        for model in self.models:
            model.give_back()
        if first:
            log.critical("device.lost", cause=safe_cause(error))
            self._told_lost(error)

    def _join(self) -> None:
        if self._joining:
            with self._changes:
                self.models = (*self.models, *self._joining)
                self._joining.clear()
            self.shares.set_models(self.models)

    def _leave(self) -> None:
        over = [model for model in self.models if model.over]
        if over:
            self.models = tuple(model for model in self.models if model not in over)
            self.shares.set_models(self.models)
            for model in over:
                model.close()

    def _loop(self) -> None:
        while not self._stopped:
            self._awake.clear()
            try:
                if self.turn() or self._stopped:
                    continue
            except Exception:  # the thread must outlive whatever escaped
                log.exception("streams.broken")
            self._pause()

    def _pause(self) -> None:
        """Nothing to do: until something is written, or the next run may be done."""
        if not self.running:
            self._awake.wait(None if not self.models else PERIOD_NS / 1e9)
            return
        wait_s = self._until_next() - _EARLY_S
        if wait_s > 0:
            self._awake.wait(wait_s)
        else:
            time.sleep(0)  # lets the threads that read links have the interpreter

    def _until_next(self) -> float:
        """Seconds until the first run is expected to end."""
        now = self._clock_ns()
        ends = (run.started_ns + run.model.run_s * _CAUTION * 1e9 for run in self.running)
        return (min(ends) - now) / 1e9

    def __repr__(self) -> str:
        return f"<StreamScheduler {len(self.running)}/{self._streams} running, {self.models}>"
