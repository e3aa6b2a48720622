"""Threads that keep shared state fresh: publish what is ours, follow what is others'."""

import math
import random
import threading
from collections.abc import Callable

import structlog

from sits_core.clock import now_ns
from sits_core.registry import LEASE_PERIOD_S, POLL_PERIOD_S, Registry, RegistryUnavailable
from sits_protos.v1.registry_pb2 import Lease

log = structlog.get_logger()

RETRY_S = 1.0
"""Mean wait after a failure: a mesh that lost Redis does not return all at once."""

MIN_GAP_S = 0.05
"""Wakes closer than this, or than the period, share one run: a storm of changes costs little."""

STOP_TIMEOUT_S = 0.9


class Periodic:
    """Runs `fn` at once, then every `period_s` ± 10 %, and whenever woken.

    `RegistryUnavailable` is retried after about `RETRY_S`, or `period_s` if that is
    shorter. Anything else is logged with all of it, once until a run works again.
    """

    def __init__(
        self,
        fn: Callable[[], None],
        period_s: float,
        name: str,
        *,
        clock: Callable[[], int] = now_ns,
        rng: random.Random | None = None,
    ) -> None:
        self._fn, self._period_s, self._name = fn, period_s, name
        self._clock, self._rng = clock, rng or random.Random()  # noqa: S311 - jitter
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._success_ns: int | None = None
        self._failing = False
        self._broken = False

    @property
    def age_s(self) -> float:
        """Seconds since the last run that worked; infinite before the first."""
        if self._success_ns is None:
            return math.inf
        return max(0, self._clock() - self._success_ns) / 1e9

    @property
    def connected(self) -> bool:
        """Whether the newest run worked."""
        return self._success_ns is not None and not self._failing

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Run soon, whatever the period. Safe from any thread, never blocks."""
        self._wake.set()

    def stop(self) -> None:
        """Returns within a second, even while a run hangs."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            delay_s = self._delay_s(self._attempt(self._fn))
            gap_s = min(MIN_GAP_S, delay_s)
            self._stopping.wait(gap_s)
            self._wake.wait(delay_s - gap_s)
            self._wake.clear()
        self._finish()

    def _finish(self) -> None:
        """The last thing the thread does."""

    def _delay_s(self, worked: bool) -> float:
        if worked:
            return self._period_s * self._rng.uniform(0.9, 1.1)
        return min(RETRY_S, self._period_s) * self._rng.uniform(0.5, 1.5)

    def _attempt(self, step: Callable[[], None]) -> bool:
        try:
            step()
        except RegistryUnavailable:  # counted and logged where it was raised
            self._failing = True
        except Exception:  # a keeper that dies takes its process out of the mesh
            if not self._broken:
                log.exception("keeper.failed", keeper=self._name)
            self._failing = self._broken = True
        else:
            self._success_ns = self._clock()
            self._failing = self._broken = False
        return not self._failing

    def __repr__(self) -> str:
        state = "connected" if self.connected else "failing" if self._failing else "new"
        return f"<{type(self).__name__} {self._name} {state} age={self.age_s:.1f}s>"


class LeaseKeeper(Periodic):
    """Keeps this process known to the mesh, and takes it out when it stops.

    `make_lease` is asked each time; `wake` publishes a change, such as draining, at once.
    Without a registry it does nothing.
    """

    def __init__(
        self,
        registry: Registry | None,
        make_lease: Callable[[], Lease],
        *,
        rng: random.Random | None = None,
    ) -> None:
        super().__init__(self._publish, LEASE_PERIOD_S, "lease keeper", rng=rng)
        self._registry, self._make_lease = registry, make_lease
        self._published: Lease | None = None

    def start(self) -> None:
        if self._registry is not None:
            super().start()

    def _publish(self) -> None:
        if self._registry is not None:
            # Remembered even if publishing fails: it may have arrived.
            self._published = self._make_lease()
            self._registry.publish_lease(self._published)

    def _finish(self) -> None:
        self._attempt(self._withdraw)

    def _withdraw(self) -> None:
        if self._registry is not None and self._published is not None:
            self._registry.withdraw_lease(self._published.role, self._published.id)


class Follower(Periodic):
    """Calls `on_poll` every `POLL_PERIOD_S`, and at once when something changed.

    `on_poll` reads the registry and may raise `RegistryUnavailable`; what it last learned
    stays in force then. Without a registry it is never called.
    """

    def __init__(
        self,
        registry: Registry | None,
        on_poll: Callable[[], None],
        *,
        rng: random.Random | None = None,
    ) -> None:
        super().__init__(on_poll, POLL_PERIOD_S, "follower", rng=rng)
        self._registry = registry
        self._unsubscribe: Callable[[], None] = lambda: None

    def start(self) -> None:
        if self._registry is not None:
            self._unsubscribe = self._registry.subscribe(self.wake)
            super().start()

    def stop(self) -> None:
        self._unsubscribe()
        super().stop()
