"""One batch on its way through the steps of a pipeline that are on several executors.

Each step is a batch of its own for the dispatcher, which places, moves and expires it like any
other; its result comes back here and becomes the next step's input. Only batches of pipelines
are parsed. Tensors stay in the pools of the executors that made them as long as those who read
them share memory with them.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import structlog

from sits_channel import wire
from sits_channel.bounded import Pressure
from sits_channel.pool_reader import PoolReader
from sits_core.clock import now_ns
from sits_core.errors import Cancelled, Internal, SitsError
from sits_dispatcher.job import Front
from sits_dispatcher.micro_batches import Part
from sits_dispatcher.pipeline_tensors import Held, cast, inlined, kept_rows, renamed
from sits_dispatcher.pipelines import Plan, PlannedStep
from sits_protos.v1.common_pb2 import Error, PayloadRef, Tensor
from sits_protos.v1.link_pb2 import (
    BatchHeader,
    Cancel,
    LinkMessage,
    RequestHeader,
    RequestResult,
    ResultHeader,
    StageTimes,
    StepRun,
)
from sits_scheduling.explain import PathStep
from sits_scheduling.paths import Later

log = structlog.get_logger()

_ACCEPTED = Pressure(True, 0.0)


class Steps(Protocol):
    """What runs the steps. All of it is called under the dispatcher's lock."""

    def start(self, front: Front, part: Part, later: Sequence[Later], path: PathStep) -> None: ...
    def cancel(self, front: Front, cancel: Cancel) -> None: ...
    def front_lost(self, front: Front) -> None: ...
    def give_back(self, executor: str, slots: Sequence[PayloadRef]) -> None: ...
    def place_of(self, executor: str) -> tuple[str, int, str]:
        """Host, NUMA node and device."""
        ...

    def ended(self, run: "PipelineRun") -> None: ...


class PipelineRun:
    """`front` waits for the part of its batch. As a peer, it is whom the steps answer to."""

    def __init__(
        self, steps: Steps, plan: Plan, reader: PoolReader, front: Front, part: Part
    ) -> None:
        self.front, self.part = front, part
        self.batch_id, self._plan, self._steps, self._reader = (
            part.header.batch_id, plan, steps, reader,
        )  # fmt: skip
        self.inner = Front(self, front.id, front.host, front.numa_node, shares_memory=True)
        self._requests: Sequence[RequestHeader] = ()
        self._errors: dict[int, Error] = {}
        self._held: dict[str, Held] = {}
        self._alive: tuple[int, ...] = ()
        self._next = 0
        self._results: list[ResultHeader] = []
        self._started_ns = now_ns()
        self._last_maker = ""

    def __repr__(self) -> str:
        total = len(self._plan.steps)
        return f"<PipelineRun {self._plan.pipeline.name} at step {self._next} of {total}>"

    def start(self) -> None:
        """Raises `wire.MalformedMessage`."""
        message = wire.parse(self.part.body)
        self._requests = message.requests[:]
        self._alive = tuple(range(len(self._requests)))
        self._held = {t.name: Held(t, "", self._alive) for t in message.inputs}
        try:
            self._go_on()
        except SitsError as error:
            self._fail(error.to_proto())

    def cancel(self, requests: Iterable[int]) -> None:
        """Positions in the part; none at all = every one. What has not begun need not."""
        wanted = set(requests) or set(range(len(self._requests)))
        ours = [self._alive.index(position) for position in self._alive if position in wanted]
        error = Cancelled("the request was cancelled before it ran").to_proto()
        self._errors |= dict.fromkeys(wanted - self._errors.keys(), error)
        if ours:
            self._steps.cancel(self.inner, Cancel(batch_id=self._next, requests=ours))

    def abandon(self) -> None:
        """Nobody waits any more."""
        self.inner.gone = True
        self._steps.front_lost(self.inner)
        self._release(list(self._held))
        self._steps.ended(self)

    # the peer that steps answer to

    def write(self, message: bytes) -> Pressure:
        split = wire.split(message)
        header = ResultHeader.FromString(split.head)
        if header.HasField("error"):
            self._fail(header.error)
            return _ACCEPTED
        self._results.append(header)
        step = self._plan.steps[self._next - 1]
        try:
            self._take(step, header, wire.parse(split.body))
            self._go_on()
        except SitsError as error:
            self._fail(error.to_proto())
        except Exception as error:  # an answer must go out whatever broke
            log.exception("pipeline.broken", run=repr(self))
            self._fail(Internal(f"dispatcher fault: {type(error).__name__}").to_proto())
        return _ACCEPTED

    def close(self) -> None:
        return None

    # steps

    def _take(self, step: PlannedStep, header: ResultHeader, message: LinkMessage) -> None:
        """The step's outputs are the pipeline's tensors; requests that failed go no further."""
        if len(message.results) != len(self._alive):
            raise Internal(
                f"{step.step}: {header.instance} answered {len(message.results)} requests, "
                f"expected {len(self._alive)}"
            )
        failed = {
            position: result.error
            for position, result in zip(self._alive, message.results, strict=True)
            if result.HasField("error")
        }
        for position, error in failed.items():
            self._errors.setdefault(position, _named(step, error))
        made = tuple(position for position in self._alive if position not in failed)
        names = step.step.outputs
        for tensor in message.outputs:
            held = Held(tensor, header.instance, made)
            if tensor.name in names:
                self._held[names[tensor.name]] = held
            else:
                held.release(self._steps.give_back)
        self._alive = tuple(position for position in made if position not in self._errors)
        self._last_maker = header.instance
        self._release(name for name in list(self._held) if not self._needed(name))

    def _go_on(self) -> None:
        if not self._alive or self._next == len(self._plan.steps):
            self._finish()
            return
        step = self._plan.steps[self._next]
        self._next += 1
        inputs = [
            self._input(self._held[tensor], name, step.types[name])
            for name, tensor in step.step.inputs.items()
            if tensor in self._held
        ]
        header = self._header(step, inputs)
        body = LinkMessage(requests=[self._requests[p] for p in self._alive], inputs=inputs)
        self._plan.learn(self._next, header.payload_bytes / max(1, header.rows))
        self._steps.start(
            self.inner, Part(header, body.SerializeToString()), self._later(header.rows),
            PathStep(self._plan.pipeline.name, self._next),
        )  # fmt: skip

    def _input(self, held: Held, name: str, datatype: str) -> Tensor:
        return renamed(self._current(held, datatype), name)

    def _current(self, held: Held, datatype: str) -> Tensor:
        """Only rows that are still alive, in the precision that is asked for."""
        tensor = held.tensor
        if held.alive != self._alive:
            rows = [self._requests[position].rows for position in held.alive]
            keep = [position in self._alive for position in held.alive]
            tensor = kept_rows(inlined(tensor, self._reader), rows, keep)
        if tensor.datatype != datatype:
            tensor = cast(inlined(tensor, self._reader), datatype)
        return tensor

    def _header(self, step: PlannedStep, inputs: Sequence[Tensor]) -> BatchHeader:
        """As the pipeline's, with what differs for this step."""
        header = BatchHeader()
        header.CopyFrom(self.part.header)
        header.batch_id, header.model, header.version = self._next, step.step.model, step.version
        header.requests = len(self._alive)
        header.rows = sum(self._requests[position].rows for position in self._alive)
        held = [Held(tensor, "", self._alive) for tensor in inputs]
        header.payload_bytes = sum(one.size_bytes for one in held)
        header.inline_bytes = sum(one.size_bytes for one in held if not one.by_reference)
        header.by_reference = any(one.by_reference for one in held)
        if self._next > 1:
            host, node, device = self._steps.place_of(self._last_maker)
            header.payload_host, header.payload_numa_node = host, node
            header.payload_device = device
            header.closed_unix_ns = header.oldest_queued_unix_ns = now_ns()
        return header

    def _later(self, rows: int) -> tuple[Later, ...]:
        """Steps after this one, as far as the sizes of their inputs are known."""
        sizes = self._plan.row_bytes
        return tuple(
            Later(step.key, rows, sizes[number] * rows)
            for number, step in enumerate(self._plan.steps, 1)
            if number > self._next and number in sizes
        )

    def _needed(self, tensor: str) -> bool:
        later = self._plan.steps[self._next :]
        return tensor in self._plan.types or any(
            tensor in step.step.inputs.values() for step in later
        )

    def _release(self, tensors: Iterable[str]) -> None:
        for name in tensors:
            self._held.pop(name).release(self._steps.give_back)

    # the end

    def _finish(self) -> None:
        self._steps.ended(self)
        last = self._results[-1]
        wanted = self._plan.types.items() if self._alive else ()
        outputs = [self._output(name, datatype) for name, datatype in wanted]
        self._release(list(self._held))
        header = ResultHeader(
            batch_id=self.batch_id, first_request=self.part.first,
            requests=len(self._requests), instance=last.instance, times=self._times(),
            executed_rows=last.executed_rows, version=self._plan.entry.version,
            execution=last.execution, payload_bytes=sum(_size(t) for t in outputs),
            inline_bytes=sum(len(t.inline) for t in outputs), steps=self._step_runs(),
        )  # fmt: skip
        body = LinkMessage(results=list(self._request_results()), outputs=outputs)
        self._send(header, body.SerializeToString())

    def _output(self, name: str, datatype: str) -> Tensor:
        """For the front: it gives back slots of the last executor only, and may not be able to
        read any."""
        held = self._held.pop(name)
        tensor = self._current(held, datatype)
        readable = self.front.shares_memory and held.owner == self._results[-1].instance
        if tensor.WhichOneof("payload") == "reference" and not readable:
            tensor = inlined(tensor, self._reader)
        if tensor.WhichOneof("payload") != "reference":
            held.release(self._steps.give_back)
        return renamed(tensor, name)

    def _request_results(self) -> Iterator[RequestResult]:
        for position, request in enumerate(self._requests):
            if position in self._errors:
                yield RequestResult(error=self._errors[position], final=True)
            else:
                yield RequestResult(rows=request.rows, final=True)

    def _fail(self, error: Error) -> None:
        self._steps.ended(self)
        self._release(list(self._held))
        step = self._plan.steps[max(0, self._next - 1)]
        times = StageTimes(dispatcher_received=self._started_ns)
        header = ResultHeader(
            batch_id=self.batch_id, first_request=self.part.first,
            requests=len(self._requests), error=_named(step, error),
            version=self._plan.entry.version, times=times,
        )  # fmt: skip
        self._send(header, b"")

    def _send(self, header: ResultHeader, body: bytes) -> None:
        if self.front.gone:
            return
        header.times.dispatcher_returned = now_ns()
        message = wire.join(wire.RESULT, header.SerializeToString(), body)
        if not self.front.peer.write(message).accepted:
            self.front.peer.close()

    def _times(self) -> StageTimes:
        """From the first step's start to the last one's end."""
        first, last = self._results[0].times, self._results[-1].times
        return StageTimes(
            dispatcher_received=self._started_ns, dispatcher_sent=first.dispatcher_sent,
            executor_received=first.executor_received, input_started=first.input_started,
            infer_started=first.infer_started, output_started=last.output_started,
            executor_sent=last.executor_sent,
        )  # fmt: skip

    def _step_runs(self) -> Iterator[StepRun]:
        for step, result in zip(self._plan.steps, self._results, strict=False):
            times = result.times
            infer_ended = times.output_started or times.infer_started
            yield StepRun(
                model=step.step.model, version=step.version, instance=result.instance,
                rows=result.executed_rows,
                queue_ns=max(0, times.input_started - times.executor_received),
                input_ns=max(0, times.infer_started - times.input_started),
                infer_ns=max(0, infer_ended - times.infer_started),
                output_ns=max(0, times.executor_sent - infer_ended),
            )  # fmt: skip


def _named(step: PlannedStep, error: Error) -> Error:
    return Error(
        code=error.code, message=f"{step.step}: {error.message}", reason=error.reason,
        retry_after_ms=error.retry_after_ms,
    )  # fmt: skip


def _size(tensor: Tensor) -> int:
    return Held(tensor, "", ()).size_bytes
