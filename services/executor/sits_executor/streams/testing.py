"""A device whose runs end when a test says so, and a clock that a test moves."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from sits_core.datatypes import Array
from sits_executor.backends.base import Arrays, Parameters, Signature
from sits_executor.backends.streamed import DeviceLost, StreamStats
from sits_executor.contract import Contract


@dataclass(slots=True)
class FakeMemory:
    allocated: int = 1
    reserved: int = 2
    budget: int = 3


@dataclass(slots=True, eq=False)
class FakeStaged:
    arrays: Mapping[str, Array]
    discarded: bool = False

    def discard(self) -> None:
        self.discarded = True


@dataclass(slots=True, eq=False)
class FakeFlight:
    """`end` makes it done, `fail` makes looking at it raise."""

    owner: "FakeStreams"
    arrays: Mapping[str, Array]
    ended: bool = False
    error: Exception | None = None
    released: bool = False

    def end(self) -> None:
        self.ended = True

    def fail(self, error: Exception) -> None:
        self.error = error

    def done(self) -> bool:
        if self.error is not None:
            raise self.error
        return self.ended

    def land(self) -> Arrays:
        self.owner.flights.remove(self)
        return {} if self.error is not None else self.owner.function(self.arrays)

    def release(self) -> None:
        self.released = True

    @property
    def value(self) -> float:
        """The first element, by which tests tell batches apart."""
        return float(np.ravel(next(iter(self.arrays.values())))[0])


def doubled(inputs: Arrays) -> Arrays:
    """y = 2 × x."""
    return {"y": np.multiply(inputs["x"], 2, dtype=np.float32)}


@dataclass(slots=True, eq=False)
class FakeStreams:
    """A `StreamBackend`. `flights` are those under way, oldest first; `launched` the first
    elements of all. `run` is at once. `sets` limits what may be staged at a time."""

    streams: int = 2
    function: Callable[[Arrays], Arrays] = doubled
    precision: str = "FP32"
    sets: int = 1000
    error: Exception | None = None
    signature: Signature | None = None
    fallback: str = ""
    stats: StreamStats = field(default_factory=StreamStats)
    flights: list[FakeFlight] = field(default_factory=list)
    launched: list[float] = field(default_factory=list)
    staged: list[FakeStaged] = field(default_factory=list)
    prepared: bool = False
    closed: bool = False
    freed: Callable[[], object] = lambda: None

    @property
    def free(self) -> int:
        return self.streams - len(self.flights)

    def memory(self) -> FakeMemory:
        return FakeMemory()

    def prepare(self, contract: Contract) -> None:
        self.prepared = True

    def stage(self, inputs: Arrays) -> FakeStaged | None:
        used = sum(not s.discarded for s in self.staged) + len(self.flights)
        if used >= self.sets:
            return None
        staged = FakeStaged({name: np.array(array) for name, array in inputs.items()})
        self.staged.append(staged)
        return staged

    def launch(self, staged: FakeStaged, parameters: Parameters) -> FakeFlight | None:
        if self.error is not None:
            raise self.error
        if not self.free:
            return None
        self.staged.remove(staged)
        flight = FakeFlight(self, staged.arrays)
        self.flights.append(flight)
        self.launched.append(flight.value)
        return flight

    def run(self, inputs: Arrays, parameters: Parameters) -> Arrays:
        if isinstance(self.error, DeviceLost):
            raise self.error
        return self.function(inputs)

    def close(self) -> None:
        self.closed = True


@dataclass(slots=True)
class FakeClock:
    now_ns: int = 1

    def __call__(self) -> int:
        return self.now_ns

    def pass_s(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)
