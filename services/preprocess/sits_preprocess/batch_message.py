"""Requests into one columnar batch message, and a result message into their answers."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from sits_core.errors import Internal, SitsError, from_proto
from sits_preprocess.payloads import request_sizes
from sits_preprocess.request import (
    Answer,
    ParameterValue,
    Request,
    Run,
    StepRun,
    TensorData,
    Times,
)
from sits_protos.v1 import link_pb2 as pb
from sits_protos.v1.common_pb2 import Parameter, PayloadRef, Tensor
from sits_protos.v1.link_pb2 import BatchHeader, CloseReason, LinkMessage, ResultHeader
from sits_scheduling.batching import DEFAULT_PRIORITY

Put = Callable[[Sequence[TensorData]], PayloadRef | None]
Fetch = Callable[[PayloadRef], bytes]


class Batch(Protocol):
    """What a message says about its batch."""

    batch_id: int
    reason: CloseReason.ValueType
    closed_ns: int


class Built(NamedTuple):
    """A batch's message, the slots it uses, and how much of its payload is in itself."""

    message: bytes
    slots: list[PayloadRef]
    payload_bytes: int
    inline_bytes: int


def build(sent: Batch, requests: Sequence[Request], put: Put) -> Built:
    """The message for a batch of requests with equal keys.

    `put` writes a column into shared memory, or says None: then it travels inline.
    """
    message = LinkMessage()
    for request in requests:
        _add_header(message, request)
    header = message.batch
    _fill_header(header, sent, requests)
    rows = header.rows if len(requests) > 1 else None
    slots: list[PayloadRef] = []
    for column in zip(*[r.inputs for r in requests], strict=True):
        slot = put(column)
        if slot is not None:
            slots.append(slot)
        _fill_tensor(message.inputs.add(), column, rows, slot)
    header.by_reference = bool(slots)
    payload, inline = header.payload_bytes, header.payload_bytes - sum([s.length for s in slots])
    header.inline_bytes = inline
    return Built(message.SerializeToString(), slots, payload, inline)


def answers(
    header: ResultHeader, message: LinkMessage, requests: Sequence[Request], run: Run, fetch: Fetch
) -> list[Answer]:
    """One answer per request of the part that `header` names, in order.

    `message` is the parsed body; `fetch` reads an output that lies in shared memory.
    """
    if header.HasField("error"):
        return [Answer((), from_proto(header.error), run)] * len(requests)
    try:
        return _split(message, requests, run, fetch)
    except SitsError as error:
        return [Answer((), error, run)] * len(requests)
    except (ValueError, IndexError):
        broken = Internal("the executor's answer does not fit its batch")
        return [Answer((), broken, run)] * len(requests)


def run_of(header: ResultHeader, closed_ns: int, now: int) -> Run:
    """The executor's and dispatcher's stamps between those of the edge."""
    t = header.times
    times = Times(
        closed_ns, t.dispatcher_received, t.dispatcher_sent, t.executor_received, t.input_started,
        t.infer_started, t.output_started, t.executor_sent, t.dispatcher_returned, now,
    )  # fmt: skip
    steps = tuple(_step_run(step) for step in header.steps) if header.steps else ()
    return Run(
        times, header.execution, header.executed_rows, header.instance, steps, header.explanation,
        header.content,
    )  # fmt: skip


def _step_run(step: pb.StepRun) -> StepRun:
    return StepRun(
        step.model, step.version, step.rows, step.queue_ns, step.input_ns, step.infer_ns,
        step.output_ns,
    )  # fmt: skip


def _split(
    message: LinkMessage, requests: Sequence[Request], run: Run, fetch: Fetch
) -> list[Answer]:
    results = message.results[:]
    if len(results) != len(requests):
        raise ValueError("one result for each request")
    errors = {i: result.error for i, result in enumerate(results) if result.HasField("error")}
    rows = [result.rows for i, result in enumerate(results) if i not in errors]
    parts = zip(*[_column(tensor, rows, fetch) for tensor in message.outputs], strict=True)
    answers: list[Answer] = []
    for position, request in enumerate(requests):
        if position in errors:
            answers.append(Answer((), from_proto(errors[position]), run))
            continue
        outputs = next(parts, ())
        if request.outputs:
            outputs = tuple([outputs[index] for index in request.outputs])
        answers.append(Answer(outputs, None, run))
    return answers


def _column(tensor: Tensor, rows: Sequence[int], fetch: Fetch) -> list[TensorData]:
    """The parts of one output, one per successful request."""
    shared = tensor.WhichOneof("payload") == "reference"
    data = memoryview(fetch(tensor.reference) if shared else tensor.inline)
    name, datatype, shape = tensor.name, tensor.datatype, tuple(tensor.shape[:])
    if len(rows) == 1:
        return [TensorData(name, datatype, shape, data)]
    sizes = tensor.request_bytes[:] or _proportional(len(data), rows)
    if len(sizes) != len(rows) or sum(sizes) != len(data):
        raise ValueError("sizes of an output")
    inner, end = shape[1:], 0
    parts: list[TensorData] = []
    for count, size in zip(rows, sizes, strict=True):
        start, end = end, end + size
        parts.append(TensorData(name, datatype, (count, *inner), data[start:end]))
    return parts


def _proportional(length: int, counts: Sequence[int]) -> list[int]:
    row = length // sum(counts) if counts else 0
    return [count * row for count in counts]


def _add_header(message: LinkMessage, request: Request) -> None:
    """What an executor reads about a request. Its id is in the batch's header, where its tenant
    and priority are summed up; its edge stamps stay here. Each field would cost every hop."""
    header = message.requests.add(rows=request.rows)
    if request.deadline is not None:
        header.deadline_unix_ns = request.deadline.unix_ns
    if request.trace is not None:
        header.trace_context = request.trace.to_wire()
    if request.outputs:
        header.outputs[:] = request.outputs
    for name, value in request.parameters.items():
        header.parameters[name].CopyFrom(parameter_of(value))


def _fill_header(header: BatchHeader, sent: Batch, requests: Sequence[Request]) -> None:
    first = requests[0]
    deadlines = [r.deadline.unix_ns for r in requests if r.deadline is not None]
    header.batch_id, header.model, header.version = sent.batch_id, first.model, first.version
    header.requests, header.rows = len(requests), sum([r.rows for r in requests])
    header.payload_bytes = sum([r.payload_bytes for r in requests])
    if deadlines:
        header.earliest_deadline_unix_ns = min(deadlines)
        if len(deadlines) == len(requests):
            header.latest_deadline_unix_ns = max(deadlines)
    if any(r.explain for r in requests):
        header.explain = True
    if any(r.priority for r in requests):
        header.priority = min([r.priority or DEFAULT_PRIORITY for r in requests])
    header.tenant = first.tenant
    header.close_reason, header.closed_unix_ns = sent.reason, sent.closed_ns
    header.oldest_queued_unix_ns = min([r.queued_ns for r in requests])
    header.trace_contexts.extend([r.trace.to_wire() for r in requests if r.trace is not None])
    header.payload_numa_node = -1
    header.request_ids.extend([r.id for r in requests if r.id])


def _fill_tensor(
    tensor: Tensor, column: Sequence[TensorData], rows: int | None, slot: PayloadRef | None
) -> None:
    """`rows` None = one request, whose shape is literal."""
    first = column[0]
    tensor.name, tensor.datatype = first.name, first.datatype
    tensor.shape[:] = first.shape if rows is None else (rows, *first.shape[1:])
    tensor.request_bytes[:] = request_sizes(column)
    if slot is not None:
        tensor.reference.CopyFrom(slot)
    else:
        tensor.inline = b"".join([part.data for part in column])


def parameter_of(value: ParameterValue) -> Parameter:
    match value:
        case bool():
            return Parameter(bool_value=value)
        case int():
            return Parameter(int64_value=value)
        case float():
            return Parameter(double_value=value)
        case str():
            return Parameter(string_value=value)
