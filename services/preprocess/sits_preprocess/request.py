"""A checked request on its way through the front door, and its answer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sits_core.clock import Deadline
from sits_core.errors import SitsError
from sits_core.tracing import TraceContext

ParameterValue = bool | int | str | float


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


class Answer(NamedTuple):
    """Exactly one per request: outputs in the model's order, or an error."""

    outputs: tuple[TensorData, ...] = ()
    error: SitsError | None = None
    times: Times = Times()
    batch_id: int = 0
    executed_rows: int = 0
    instance: str = ""
    parameters: Mapping[str, ParameterValue] = {}


@dataclass(slots=True, eq=False)
class Request:
    """Checked against the model's metadata: whatever is in here can be batched and run.

    `model` and `version` are exact. `shape` of an input includes its rows; `rows` is 1
    when the model does not batch. `outputs` are positions in the model's output list,
    empty for all. `answer` is called exactly once, from any thread, and must not block.
    """

    id: str
    model: str
    version: str
    inputs: tuple[TensorData, ...]
    rows: int
    answer: Callable[[Answer], None]
    outputs: tuple[int, ...] = ()
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    tenant: str = ""
    priority: int = 0
    deadline: Deadline | None = None
    trace: TraceContext | None = None
    received_ns: int = 0
    queued_ns: int = 0
    payload_bytes: int = 0
