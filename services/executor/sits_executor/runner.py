"""The life of one batch inside the executor: drop, stage, launch, isolate, answer."""

from collections.abc import Callable, Iterator, Sequence

import structlog

from sits_core.clock import now_ns
from sits_core.datatypes import Array
from sits_core.errors import DeadlineExceeded, Internal, InvalidArgument, SitsError
from sits_executor import answers, results, staging
from sits_executor.answers import GangRuns, Run, Stages
from sits_executor.backends.base import Backend, Ganged, Parameters, ParameterValue, Unserved
from sits_executor.backends.streamed import DeviceLost, OutOfMemory, RunLost
from sits_executor.batch import Batch
from sits_executor.contract import Contract
from sits_executor.metrics import ModelMetrics
from sits_executor.payloads import Payloads
from sits_executor.pipelines.backend import GivenUp, PipelineBackend, StepFailed, Traced
from sits_executor.results import BadResult, Columns
from sits_executor.safe import detail, safe_cause
from sits_executor.spans import Spans
from sits_protos.v1.common_pb2 import Parameter
from sits_protos.v1.link_pb2 import LinkMessage

log = structlog.get_logger()


class ModelFailed(Internal):
    """The model raised. Its text may be shown in part; all of it is in the log."""

    reason = "MODEL_FAILED"


class Runner:
    """Runs batches of one model version; called by as many threads as it has instances.

    `lost` is told when the device failed for good.
    """

    def __init__(
        self,
        contract: Contract,
        backend: Backend,
        payloads: Payloads,
        spans: Spans,
        metrics: ModelMetrics,
        instance: str,
        executions: Iterator[int],
    ) -> None:
        self._contract, self._backend = contract, backend
        self._pipeline = backend if isinstance(backend, PipelineBackend) else None
        self._gang = isinstance(backend, Ganged)
        self._payloads, self._spans, self._metrics = payloads, spans, metrics
        self._instance, self._executions = instance, executions
        self.lost: Callable[[DeviceLost], object] = lambda _: None

    def run(self, batch: Batch) -> bool:
        """Always answers the batch, never raises. Whether all of its requests ran, and well."""
        run = Run(Stages(batch.received_ns, input=now_ns()))
        self.complete(batch, run, lambda: self._execute(batch, run))
        return not run.errors

    def complete(self, batch: Batch, run: Run, last_step: Callable[[], None]) -> None:
        """Answers with what the step makes of `run`, or with what it raises."""
        if self.attempt(batch, run, last_step):
            own = self._contract
            message = answers.result(batch, run, self._instance, own.version, own.content)
            self._answer(batch, run, message)

    def attempt(self, batch: Batch, run: Run, step: Callable[[], None]) -> bool:
        """False when the step raised, and the batch got that as its answer."""
        try:
            step()
        except DeviceLost as error:
            self.lost(error)
            self._answer(batch, run, self._failed(batch, run, RunLost()))
        except SitsError as error:
            self._answer(batch, run, self._failed(batch, run, error))
        except Exception as error:  # noqa: BLE001 - an answer must go out whatever broke
            log.error("batch.broken", batch=repr(batch), detail=detail(error))
            fault = Internal(f"executor fault: {type(error).__name__}")
            self._answer(batch, run, self._failed(batch, run, fault))
        else:
            return True
        return False

    def _answer(self, batch: Batch, run: Run, message: LinkMessage) -> None:
        if not batch.answer(message):
            self._payloads.release(t.reference for t in run.outputs if t.HasField("reference"))
        self._metrics.ran(batch, run)
        self._spans.record(batch, run)

    def _execute(self, batch: Batch, run: Run) -> None:
        run.errors = batch.drops(run.stages.input)
        if len(run.errors) == len(batch.requests):
            return
        arrays = staging.stage(batch.tensors, self._contract, batch.rows, self._payloads.read)
        run.stages.infer = now_ns()
        run.errors = errors = batch.drops(run.stages.infer)
        alive: Sequence[int] = range(len(batch.requests))
        if errors:
            alive = [position for position in alive if position not in errors]
        if not alive:
            return
        run.execution = next(self._executions)
        columns = self._launch(batch, run, arrays, alive)
        run.stages.output = now_ns()
        self._payloads.verify(batch.tensors)
        if len(run.errors) < len(batch.requests):
            self._pack(batch, run, columns)

    def _pack(self, batch: Batch, run: Run, columns: Columns) -> None:
        errors, requests = run.errors, batch.requests
        rows = [request.rows for p, request in enumerate(requests) if p not in errors]
        room = self._payloads.reserve(batch.holder, batch.header.results_by_reference)
        try:
            run.outputs = results.pack(columns, self._contract, rows, room)
            run.output_bytes, run.inline_bytes = room.asked_bytes, room.inline_bytes
        except BaseException:
            room.undo()
            raise

    def _launch(
        self, batch: Batch, run: Run, arrays: dict[str, Array], alive: Sequence[int]
    ) -> Columns:
        """One run for all; when that raises, one for each, so that only the bad ones fail."""
        try:
            columns, run.executed_rows = self._once(batch, run, arrays, alive)
            return columns
        except (BadResult, DeviceLost, Unserved):
            raise
        except GivenUp:
            run.errors |= batch.drops(now_ns())
            return ()
        except Exception as error:  # noqa: BLE001 - models raise anything
            return self._isolated(batch, run, arrays, alive, error)

    def _isolated(
        self, batch: Batch, run: Run, arrays: dict[str, Array], alive: Sequence[int],
        error: Exception,
    ) -> Columns:  # fmt: skip
        """After a run of all of them raised `error`."""
        run.failed_runs += 1
        if len(alive) == 1:
            run.errors[alive[0]] = self._model_failed(batch, error)
            return ()
        log.info("batch.isolating", batch=repr(batch), cause=safe_cause(error))
        return self._each_alone(batch, run, arrays, alive)

    def _each_alone(
        self, batch: Batch, run: Run, arrays: dict[str, Array], alive: Sequence[int]
    ) -> Columns:
        parts: list[Columns] = []
        for position in alive:
            if (late := batch.drops(now_ns()).get(position)) is not None:
                run.errors[position] = late
                continue
            try:
                columns, rows = self._once(batch, run, arrays, [position])
            except BadResult as error:
                run.errors[position] = error
            except (DeviceLost, Unserved):
                raise
            except GivenUp:
                run.errors |= batch.drops(now_ns())
            except Exception as error:  # noqa: BLE001 - models raise anything
                run.failed_runs += 1
                run.errors[position] = self._model_failed(batch, error)
            else:
                parts.append(columns)
                run.executed_rows = max(run.executed_rows, rows)
        return results.join(parts, self._contract) if parts else ()

    def _once(
        self, batch: Batch, run: Run, arrays: dict[str, Array], alive: Sequence[int]
    ) -> tuple[Columns, int]:
        chosen, rows = arrays, batch.rows
        if len(alive) < len(batch.requests):
            spans = [batch.span(position) for position in alive]
            rows = sum(span.stop - span.start for span in spans)
            chosen = staging.select(arrays, spans, batch.rows)
        started_ns = now_ns()
        if self._gang:  # failed until it is not
            run.gang = GangRuns(run.gang.runs + 1, run.gang.failures + 1)
        if self._pipeline is None:
            outputs = self._backend.run(chosen, parameters_of(batch))
        else:
            outputs = self._pipeline.run_while(
                chosen, parameters_of(batch), lambda: _wanted(batch, alive)
            )
        run.took_s.append((now_ns() - started_ns) / 1e9)
        if self._gang:
            run.gang = run.gang._replace(failures=run.gang.failures - 1)
        if isinstance(outputs, Traced):
            run.steps += outputs.steps
        return results.check(outputs, self._contract, rows), rows

    def _model_failed(self, batch: Batch, error: Exception) -> SitsError:
        log.warning("model.failed", batch=repr(batch), detail=detail(error))
        if isinstance(error, OutOfMemory | InvalidArgument | DeadlineExceeded):
            return error  # a backend that knows what it was says so
        if isinstance(error, StepFailed):
            return ModelFailed(
                f"model '{self._contract.model}' failed at {error.message}", reason=error.reason
            )
        return ModelFailed(f"model '{self._contract.model}' failed: {safe_cause(error)}")

    def _failed(self, batch: Batch, run: Run, error: SitsError) -> LinkMessage:
        run.errors, run.outputs = dict.fromkeys(range(len(batch.requests)), error), ()
        return answers.whole_failure(batch.header, error, self._instance, run.stages, run.gang)


def _wanted(batch: Batch, alive: Sequence[int]) -> bool:
    """Somebody still waits for one of these requests."""
    drops = batch.drops(now_ns())
    return not drops or any(position not in drops for position in alive)


def parameters_of(batch: Batch) -> Parameters:
    """Those of the first request: only requests with equal parameters share a batch."""
    given = batch.requests[0].parameters
    if not given:
        return {}
    return {key: _value(parameter) for key, parameter in given.items()}


def _value(parameter: Parameter) -> ParameterValue:
    match parameter.WhichOneof("value"):
        case "bool_value":
            return parameter.bool_value
        case "int64_value":
            return parameter.int64_value
        case "double_value":
            return parameter.double_value
        case _:
            return parameter.string_value
