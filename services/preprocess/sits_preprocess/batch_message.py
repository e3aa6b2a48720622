"""Requests into one columnar batch message, and a result message into their answers."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Protocol, TypedDict

from sits_core.errors import Internal, SitsError, from_proto
from sits_preprocess.payloads import request_sizes
from sits_preprocess.request import Answer, ParameterValue, Request, TensorData, Times
from sits_protos.v1.common_pb2 import Parameter, PayloadRef, Tensor
from sits_protos.v1.link_pb2 import BatchHeader, CloseReason, LinkMessage, ResultHeader

Put = Callable[[Sequence[TensorData]], PayloadRef | None]
Fetch = Callable[[PayloadRef], bytes]


class Batch(Protocol):
    """What a message says about its batch."""

    batch_id: int
    reason: CloseReason.ValueType
    closed_ns: int


class _Ran(TypedDict):
    """What all answers of one run have in common."""

    times: Times
    batch_id: int
    executed_rows: int
    instance: str


def batch_key(request: Request, batches: bool) -> Hashable:
    """Requests with equal keys may share a run; unbatched models need no key."""
    if not batches:
        return None
    inputs = tuple((t.name, t.datatype, t.shape[1:]) for t in request.inputs)
    return inputs, tuple(sorted(request.parameters.items())) if request.parameters else ()


def build(sent: Batch, requests: Sequence[Request], put: Put) -> tuple[bytes, list[PayloadRef]]:
    """The message for a batch of requests with equal keys, and the slots it uses.

    `put` writes a column into shared memory, or says None: then it travels inline.
    """
    message = LinkMessage()
    for request in requests:
        message.requests.add(
            id=request.id,
            tenant=request.tenant,
            priority=request.priority,
            deadline_unix_ns=request.deadline.unix_ns if request.deadline else 0,
            rows=request.rows,
            trace_context=request.trace.to_wire() if request.trace else b"",
            received_unix_ns=request.received_ns,
            queued_unix_ns=request.queued_ns,
            outputs=request.outputs,
            parameters=_parameters(request.parameters) if request.parameters else None,
        )
    _fill_header(message.batch, sent, requests)
    rows = message.batch.rows if len(requests) > 1 else None
    slots: list[PayloadRef] = []
    for column in zip(*(r.inputs for r in requests), strict=True):
        slot = put(column)
        if slot is not None:
            slots.append(slot)
        _fill_tensor(message.inputs.add(), column, rows, slot)
    message.batch.by_reference = bool(slots)
    return message.SerializeToString(), slots


def answers(
    header: ResultHeader,
    message: LinkMessage,
    requests: Sequence[Request],
    times: Times,
    fetch: Fetch,
) -> list[Answer]:
    """One answer per request of the part that `header` names, in order.

    `message` is the parsed body; `fetch` reads an output that lies in shared memory.
    """
    if header.HasField("error"):
        failed = Answer(error=from_proto(header.error), times=times, instance=header.instance)
        return [failed] * len(requests)
    try:
        return list(_split(header, message, requests, times, fetch))
    except SitsError as error:
        return [Answer(error=error, times=times, instance=header.instance)] * len(requests)
    except ValueError:
        broken = Answer(error=Internal("the executor's answer does not fit its batch"), times=times)
        return [broken] * len(requests)


def _split(
    header: ResultHeader,
    message: LinkMessage,
    requests: Sequence[Request],
    times: Times,
    fetch: Fetch,
) -> Iterator[Answer]:
    if len(message.results) != len(requests):
        raise ValueError("one result for each request")
    rows = [0 if r.HasField("error") else r.rows for r in message.results]
    columns = [_column(tensor, rows, fetch) for tensor in message.outputs]
    ran: _Ran = {
        "times": times,
        "batch_id": header.execution,
        "executed_rows": header.executed_rows,
        "instance": header.instance,
    }
    position = 0
    for request, result in zip(requests, message.results, strict=True):
        if result.HasField("error"):
            yield Answer(error=from_proto(result.error), **ran)
            continue
        wanted = request.outputs or range(len(columns))
        yield Answer(outputs=tuple(columns[i][position] for i in wanted), **ran)
        position += 1


def _column(tensor: Tensor, rows: Sequence[int], fetch: Fetch) -> list[TensorData]:
    """The parts of one output, one per successful request."""
    shared = tensor.WhichOneof("payload") == "reference"
    data = memoryview(fetch(tensor.reference) if shared else tensor.inline)
    counts = [r for r in rows if r]
    if len(counts) == 1:
        return [TensorData(tensor.name, tensor.datatype, tuple(tensor.shape), data)]
    sizes = list(tensor.request_bytes) or _proportional(len(data), counts)
    if len(sizes) != len(counts) or sum(sizes) != len(data):
        raise ValueError("sizes of an output")
    inner = tuple(tensor.shape)[1:]
    return [
        TensorData(tensor.name, tensor.datatype, (count, *inner), data[end - size : end])
        for count, size, end in zip(counts, sizes, accumulate(sizes), strict=True)
    ]


def _proportional(length: int, counts: Sequence[int]) -> list[int]:
    row = length // sum(counts) if counts else 0
    return [count * row for count in counts]


def _fill_header(header: BatchHeader, sent: Batch, requests: Sequence[Request]) -> None:
    first = requests[0]
    deadlines = [r.deadline.unix_ns if r.deadline else 0 for r in requests]
    header.batch_id, header.model, header.version = sent.batch_id, first.model, first.version
    header.requests, header.rows = len(requests), sum(r.rows for r in requests)
    header.payload_bytes = sum(r.payload_bytes for r in requests)
    header.latest_deadline_unix_ns = max(deadlines) if all(deadlines) else 0
    header.earliest_deadline_unix_ns = min((d for d in deadlines if d), default=0)
    header.priority = min(r.priority for r in requests)
    header.tenant = first.tenant
    header.close_reason, header.closed_unix_ns = sent.reason, sent.closed_ns
    header.trace_contexts.extend(r.trace.to_wire() for r in requests if r.trace)
    header.payload_numa_node = -1
    header.request_ids.extend(r.id for r in requests if r.id)


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
        tensor.inline = b"".join(part.data for part in column)


def _parameters(values: Mapping[str, ParameterValue]) -> dict[str, Parameter]:
    return {name: _parameter(value) for name, value in values.items()}


def _parameter(value: ParameterValue) -> Parameter:
    match value:
        case bool():
            return Parameter(bool_value=value)
        case int():
            return Parameter(int64_value=value)
        case float():
            return Parameter(double_value=value)
        case str():
            return Parameter(string_value=value)


def times_of(header: ResultHeader, closed: int, now: int) -> Times:
    """`header`'s stamps between those of the edge."""
    t = header.times
    return Times(
        closed, t.dispatcher_received, t.dispatcher_sent, t.executor_received, t.input_started,
        t.infer_started, t.output_started, t.executor_sent, t.dispatcher_returned, now,
    )  # fmt: skip
