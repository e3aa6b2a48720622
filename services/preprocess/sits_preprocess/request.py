"""A request on its way through the front door, and its answer."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from sits_core.clock import Deadline
from sits_core.errors import SitsError
from sits_core.tracing import TraceContext

if TYPE_CHECKING:
    from sits_preprocess.oip.outputs import Wanted
    from sits_preprocess.oip.result import Result
    from sits_preprocess.oip.signature import Signature

ParameterValue = bool | int | str | float
Parameters = Mapping[str, ParameterValue]
ModelKey = tuple[str, str]
"""Exact name and version."""

NO_PARAMETERS: Final[Parameters] = MappingProxyType({})


class TensorData(NamedTuple):
    """A named array as packed little-endian bytes."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | memoryview


class Times(NamedTuple):
    """Unix ns; 0 = not reached. Same stages as sits.v1.StageTimes, and the edge's own."""

    batch_closed: int = 0
    dispatcher_received: int = 0
    dispatcher_sent: int = 0
    executor_received: int = 0
    input_started: int = 0
    infer_started: int = 0
    output_started: int = 0
    executor_sent: int = 0
    dispatcher_returned: int = 0
    returned: int = 0


class StepRun(NamedTuple):
    """What a step of a pipeline took for a batch, in nanoseconds."""

    model: str
    version: str
    rows: int
    queue_ns: int
    input_ns: int
    infer_ns: int
    output_ns: int


class Run(NamedTuple):
    """What the requests of one batch, or of one part of it, have in common. `rows` ran
    together, padding included; `execution` counts the runs of `instance`. `steps` are those
    of a pipeline. `explanation`: why it went to `instance`, where somebody asked. `content`
    tells what ran. `cached`: where the answer was kept, when it was not computed for them."""

    times: Times = Times()
    execution: int = 0
    rows: int = 0
    instance: str = ""
    steps: tuple[StepRun, ...] = ()
    explanation: str = ""
    content: bytes = b""
    cached: str = ""


NOT_RUN: Final = Run()


class Answer(NamedTuple):
    """Exactly one per request: outputs in the model's order, or an error."""

    outputs: tuple[TensorData, ...] = ()
    error: SitsError | None = None
    run: Run = NOT_RUN
    parameters: Parameters = NO_PARAMETERS


@dataclass(slots=True, eq=False)
class Request:
    """One request from its arrival to its answer.

    It comes with the first four fields; admission fills in the next ones step by step, so that
    a refusal is accounted to what is known by then. Once all are checked against the model's
    metadata, whatever is in here can be batched and run; the last ones are the engine's.

    `model` and `version` are exact. `shape` of an input includes its rows; `rows` is 1 when
    the model does not batch. Requests of one model with equal `key` may share a run. `outputs`
    are positions in the model's output list, empty for all. `reply` is called exactly once,
    from any thread, and must not block.

    Nothing that a request holds leads back to it once it is answered: it is freed at once, by
    its reference count, and leaves no work to the cyclic collector.
    """

    reply: "Callable[[Result], None]"
    received_ns: int = 0
    size_bytes: int = 0
    tenant: str = ""

    id: str = ""
    model: str = ""
    version: str = ""
    signature: "Signature | None" = None
    inputs: tuple[TensorData, ...] = ()
    rows: int = 0
    payload_bytes: int = 0
    key: Hashable = ()
    wanted: "Sequence[Wanted]" = ()
    outputs: tuple[int, ...] = ()
    parameters: Parameters = field(default_factory=lambda: NO_PARAMETERS)
    priority: int = 0
    explain: bool = False
    deadline: Deadline | None = None
    parent: TraceContext | None = None
    trace: TraceContext | None = None

    queued_ns: int = 0
    judged_wait_ns: float = 0.0
    batch_id: int = 0
    position: int = 0
    answered: bool = False

    @property
    def cost(self) -> float:
        return float(self.rows)

    @property
    def arrived_ns(self) -> int:
        return self.queued_ns

    @property
    def deadline_ns(self) -> int:
        """0 = none."""
        return self.deadline.unix_ns if self.deadline is not None else 0


Answered = tuple[Request, Answer]
