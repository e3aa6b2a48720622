"""A GPU that runs batches one after the other, may be slow for a while, and may die."""

from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from sits_sim.clock import Clock


class Work(Protocol):
    """A batch, as far as a device cares."""

    rows: int


W = TypeVar("W", bound=Work)


class Device(Generic[W]):
    """Batches run in the order they came. `slowness` 1 = as measured.

    Counts how long it was busy and how many rows it ran, for utilisation.
    """

    def __init__(
        self,
        clock: Clock,
        service_ns: list[int],
        noise: Callable[[], float],
        done: Callable[[W, int], None],
    ) -> None:
        self._clock, self._noise, self._done = clock, noise, done
        self._nominal_ns = _Nominal(service_ns).__getitem__
        self._waiting: deque[W] = deque()
        self._waiting_ns = 0
        self._running: W | None = None
        self._started_ns = 0
        self._busy_ns = 0
        self.slowness = 1.0
        self.alive = True
        self.rows = 0

    def __repr__(self) -> str:
        state = "busy" if self._running else "idle"
        return f"<Device {state}, {len(self._waiting)} waiting>"

    @property
    def load(self) -> int:
        """Batches it holds."""
        return len(self._waiting) + (self._running is not None)

    @property
    def work_ns(self) -> int:
        """Service time of all it holds."""
        running = self._running
        return self._waiting_ns + (self._nominal_ns(running.rows) if running else 0)

    def busy_until_ns(self, now_ns: int) -> int:
        """Time in which it ran batches, up to now."""
        return self._busy_ns + (now_ns - self._started_ns if self._running else 0)

    def submit(self, batch: W) -> bool:
        """False when the device is dead."""
        if not self.alive:
            return False
        if self._running is None:
            self._run(batch)
        else:
            self._waiting.append(batch)
            self._waiting_ns += self._nominal_ns(batch.rows)
        return True

    def die(self) -> list[W]:
        """What it held, all of it lost."""
        running = [self._running] if self._running else []
        held = [*running, *self._waiting]
        self._busy_ns = self.busy_until_ns(self._clock.now_ns)
        self._waiting.clear()
        self._waiting_ns = 0
        self._running = None
        self.alive = False
        return held

    def revive(self) -> None:
        self.alive = True

    def _run(self, batch: W) -> None:
        self._running = batch
        self._started_ns = self._clock.now_ns
        took_ns = int(self._nominal_ns(batch.rows) * self.slowness * self._noise())
        self._clock.after(took_ns, lambda: self._finished(batch, took_ns))

    def _finished(self, batch: W, took_ns: int) -> None:
        if self._running is not batch:
            return  # it died meanwhile
        self._busy_ns += took_ns
        self.rows += batch.rows
        self._running = None
        if self._waiting:
            following = self._waiting.popleft()
            self._waiting_ns -= self._nominal_ns(following.rows)
            self._run(following)
        self._done(batch, took_ns)


class _Nominal(dict[int, int]):
    """Run time by rows; larger work than the model runs at once is several runs."""

    def __init__(self, service_ns: list[int]) -> None:
        super().__init__(enumerate(service_ns))
        self._most = len(service_ns) - 1

    def __missing__(self, rows: int) -> int:
        whole, rest = divmod(rows, self._most)
        self[rows] = found = whole * self[self._most] + self[rest]
        return found
