"""What a backend may have besides `Backend`: runs that go on while the caller does other work."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from sits_core.errors import Internal, ResourceExhausted, Unavailable
from sits_executor.backends.base import Arrays, Backend, Parameters
from sits_executor.contract import Contract


class DeviceLost(Unavailable):
    """The device failed in a way that only a new process gets over."""

    reason = "DEVICE_LOST"


class RunLost(Internal):
    """What those hear whose run was under way then. Not to be tried again: it may be the cause."""

    reason = "DEVICE_LOST"

    def __init__(self) -> None:
        super().__init__("the device failed while this request ran")


class OutOfMemory(ResourceExhausted):
    """The device had no memory for this run. The next, smaller one may work."""

    reason = "OUT_OF_MEMORY"


class Staged(Protocol):
    """The inputs of one run in host memory that the device copies from by itself."""

    def discard(self) -> None:
        """It will not be launched."""
        ...


class Flight(Protocol):
    """One run under way."""

    def done(self) -> bool:
        """Looks, never waits. Raises `DeviceLost`."""
        ...

    def land(self) -> Arrays:
        """The outputs of a run that is done: views that are valid until `release`. Its stream is
        free from here on."""
        ...

    def release(self) -> None: ...


@dataclass(slots=True)
class StreamStats:
    """Counts since the model was loaded. `fallbacks`: graphs not made or not trusted, by cause."""

    graphs: int = 0
    replays: int = 0
    eager_runs: int = 0
    padded_rows: int = 0
    staging_bytes: int = 0
    fallbacks: dict[str, int] = field(default_factory=dict)


class DeviceMemory(Protocol):
    """Bytes: in tensors, held by this process, and the most it may hold."""

    @property
    def allocated(self) -> int: ...
    @property
    def reserved(self) -> int: ...
    @property
    def budget(self) -> int: ...


@runtime_checkable
class StreamBackend(Backend, Protocol):
    """`run` is there too, and waits. All of it may be called from any thread."""

    stats: StreamStats
    freed: Callable[[], object]
    """Called when a stream became free otherwise than by `Flight.land`."""

    @property
    def streams(self) -> int:
        """Runs that can be under way at once."""
        ...

    @property
    def free(self) -> int:
        """Streams that a run could start on now."""
        ...

    @property
    def precision(self) -> str:
        """That of its weights: FP32, FP16 or BF16."""
        ...

    def memory(self) -> DeviceMemory: ...

    def prepare(self, contract: Contract) -> None:
        """Capture what can be captured, before the model is announced."""
        ...

    def stage(self, inputs: Arrays) -> Staged | None:
        """Copies the inputs. None = no staging memory is left for now."""
        ...

    def launch(self, staged: Staged, parameters: Parameters) -> Flight | None:
        """None = no stream is free. What it raises failed the run; `DeviceLost` all of them."""
        ...
