"""The seam between the executor and whatever computes: one small protocol."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from sits_core.datatypes import Array
from sits_core.errors import Unavailable
from sits_executor.backends.budget import Budget
from sits_executor.safe import safe_cause
from sits_protos.oip.model_config_pb2 import ModelConfig

ParameterValue = bool | int | str | float
Arrays = Mapping[str, Array]
Parameters = Mapping[str, ParameterValue]

Shape = tuple[int, ...]
Dim = int | str | None
"""Fixed size, name of a size that varies, or a size that varies and has no name."""


class TensorSpec(NamedTuple):
    """An input or output as the model itself declares it; `shape` None = any rank."""

    name: str
    datatype: str
    shape: tuple[Dim, ...] | None
    optional: bool = False


class Signature(NamedTuple):
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


class LoadError(Exception):
    """A model cannot be loaded. The text says why and is safe to show."""


class Unserved(Unavailable):
    """A backend could not run anything, whoever asked: the whole batch gets this, and another
    executor may do."""

    reason = "MODEL_NOT_READY"


class GangLost(Unserved):
    """A member of a gang died or did not answer, so that none could finish. What was asked is no
    reason for that."""

    reason = "GANG_FAILED"


ChooseGang = Callable[[int], Sequence[str]]
"""The GPUs, as topology names them, for a model that needs so many. Raises `LoadError`."""


def no_gang(size: int) -> Sequence[str]:
    raise LoadError(f"the model asks for a gang of {size} GPUs, which this executor cannot have")


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """What a factory gets: one version of one model, and the share of the machine it may use.

    `config` is as given, not yet completed. `threads` is for one instance.
    `gpu` is None for the CPU, else the index of the CUDA device. `gpu_memory_bytes`: the most
    that this process may hold there, 0 = all; `staging`: pinned host memory of all models.
    """

    model: str
    version: str
    directory: Path
    filename: str
    config: ModelConfig
    instances: int
    threads: int
    gpu: int | None
    gpu_memory_bytes: int = 0
    staging: Budget = field(default_factory=Budget)
    gang: ChooseGang = no_gang

    def parameter(self, key: str, default: str = "") -> str:
        """A `parameters` entry of config.pbtxt."""
        if key not in self.config.parameters:
            return default
        return self.config.parameters[key].string_value

    def cause(self, error: BaseException) -> str:
        """As `safe_cause`, with this version's files named as they are in the repository."""
        return safe_cause(error, {str(self.directory): f"{self.model}/{self.version}"})


class Backend(Protocol):
    """A loaded model version. `run` is called by as many threads as there are instances, and by
    as many again from pipelines that it is a step of."""

    @property
    def signature(self) -> Signature | None:
        """None when the model does not tell, so that its configuration must."""
        ...

    @property
    def fallback(self) -> str:
        """Why it runs on the CPU although a GPU was asked for; empty when it does not."""
        ...

    def run(self, inputs: Arrays, parameters: Parameters) -> Arrays:
        """A pure function: keeps nothing of a run, changes no input (they may be read-only).

        Outputs may have any memory layout and byte order. Whatever it raises fails the run.
        """
        ...

    def close(self) -> None: ...


Stored = object
"""An array where a backend keeps it: a NumPy array, or a tensor of its device."""


class Memory(Protocol):
    """Where arrays lie between the steps of a pipeline. Equal memories (==) hand them on as they
    are. What it does may be asynchronous, in the order of the calls of one thread; only `get`
    waits.
    """

    def working(self) -> AbstractContextManager[object]:
        """Around all calls of one run, such as a stream that they are queued on."""
        ...

    def put(self, array: Array) -> Stored:
        """A copy of a host array, which must stay unchanged until the run has ended."""
        ...

    def get(self, stored: Stored) -> Array: ...

    def cast(self, stored: Stored, datatype: str) -> Stored:
        """The same numbers in another precision: FP32, FP16 or BF16."""
        ...

    def reshape(self, stored: Stored, shape: Shape) -> Stored: ...

    def describe(self, stored: Stored) -> tuple[str, Shape]:
        """Its Open Inference Protocol datatype, and its shape."""
        ...


@runtime_checkable
class Ganged(Protocol):
    """What a backend has besides whose every run is one of several GPUs together."""

    @property
    def gang_size(self) -> int: ...


@runtime_checkable
class Resident(Protocol):
    """What a backend may have besides: runs that leave their arrays on its device, so that
    the steps of a pipeline need no way over the host."""

    @property
    def home(self) -> Memory:
        """Where it takes its inputs from and leaves its outputs."""
        ...

    def run_resident(
        self, inputs: Mapping[str, Stored], parameters: Parameters
    ) -> Mapping[str, Stored]:
        """As `Backend.run`. Queued on the memory's current stream; need not wait for the end."""
        ...


def never_waits(backend: Backend) -> bool:
    """Whether its runs only compute on this processor, and so end. A backend that does not say so
    may wait: for a device, for another server, for code of a model's author."""
    return bool(getattr(backend, "never_waits", False))


Factory = Callable[[LoadSpec], Backend]
"""Raises `LoadError`; anything else it raises is logged whole and shown only as a safe cause."""
