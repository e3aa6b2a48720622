"""A batch's life on a device with streams: the same steps, with other batches in between."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sits_core.clock import now_ns
from sits_core.datatypes import Array
from sits_executor import results, staging
from sits_executor.answers import Run, Stages
from sits_executor.backends.streamed import DeviceLost, Flight, RunLost, Staged, StreamBackend
from sits_executor.batch import Batch
from sits_executor.runner import Runner, parameters_of


@dataclass(slots=True, eq=False)
class StagedBatch:
    """`alive` are the positions whose rows are in `held`; None there = no memory was left."""

    batch: Batch
    run: Run
    arrays: dict[str, Array] = field(default_factory=dict)
    alive: Sequence[int] = ()
    rows: int = 0
    held: Staged | None = None

    def discard(self) -> None:
        if self.held is not None:
            self.held.discard()
            self.held = None


@dataclass(slots=True, eq=False)
class Launched:
    staged: StagedBatch
    flight: Flight
    started_ns: int


class StreamRunner(Runner):
    """Called by one thread. `stream` is the backend once more, by its other side."""

    stream: StreamBackend

    def stage(self, batch: Batch) -> StagedBatch | None:
        """None = it is answered already, since nobody waits for it or it is wrong."""
        staged = StagedBatch(batch, Run(Stages(batch.received_ns, input=now_ns())))
        if not self.attempt(batch, staged.run, lambda: self._stage(staged)):
            return None
        if not staged.alive:
            self.complete(batch, staged.run, _nothing)
            return None
        return staged

    def hold(self, staged: StagedBatch) -> bool:
        """Once more, after there was no memory. False = it is answered: it went wrong."""
        return self.attempt(staged.batch, staged.run, lambda: self._hold(staged))

    def launch(self, staged: StagedBatch) -> Launched | None:
        """None = it is answered. Raises `DeviceLost`, with the batch unanswered."""
        batch, run = staged.batch, staged.run
        run.stages.infer = now_ns()
        if not self._drop(staged):
            return None
        run.execution = next(self._executions)
        assert staged.held is not None  # noqa: S101 - the scheduler launches held ones only
        try:
            flight = self.stream.launch(staged.held, parameters_of(batch))
        except DeviceLost:
            raise
        except Exception as error:  # noqa: BLE001 - models raise anything
            self._alone(staged, error)
            return None
        if flight is None:
            raise RuntimeError("a batch was launched while no stream was free")
        return Launched(staged, flight, run.stages.infer)

    def land(self, launched: Launched) -> None:
        """Answers. The flight is done."""
        staged = launched.staged
        self._metrics.timed((now_ns() - launched.started_ns) / 1e9)
        try:
            self.complete(staged.batch, staged.run, lambda: self._land(launched))
        finally:
            launched.flight.release()

    def failed(self, launched: Launched, error: Exception) -> None:
        """The run raised while it was under way."""
        launched.flight.land()
        launched.flight.release()
        launched.staged.held = None
        self._alone(launched.staged, error)

    def abandon(self, staged: StagedBatch) -> None:
        """The device failed with it."""
        self._answer(staged.batch, staged.run, self._failed(staged.batch, staged.run, RunLost()))

    def _stage(self, staged: StagedBatch) -> None:
        batch, run = staged.batch, staged.run
        run.errors = batch.drops(run.stages.input)
        staged.alive = _alive(batch, run)
        if staged.alive:
            staged.arrays = staging.stage(
                batch.tensors, self._contract, batch.rows, self._payloads.read
            )
            self._hold(staged)

    def _hold(self, staged: StagedBatch) -> None:
        """The payloads are copied here; that they were what they should be is seen after it."""
        batch, chosen, staged.rows = staged.batch, staged.arrays, staged.batch.rows
        if len(staged.alive) < len(batch.requests):
            spans = [batch.span(position) for position in staged.alive]
            staged.rows = sum(span.stop - span.start for span in spans)
            chosen = staging.select(staged.arrays, spans, batch.rows)
        staged.held = self.stream.stage(chosen)
        if staged.held is not None:
            try:
                self._payloads.verify(batch.tensors)
            except Exception:
                staged.discard()
                raise

    def _drop(self, staged: StagedBatch) -> bool:
        """Look again for who needs it no more. False = nobody, and it is answered."""
        batch, run = staged.batch, staged.run
        late = batch.drops(run.stages.infer)
        if late.keys() <= run.errors.keys():
            return True
        run.errors |= late
        staged.discard()
        staged.alive = _alive(batch, run)
        if not staged.alive:
            self.complete(batch, run, _nothing)
            return False
        if self.hold(staged) and staged.held is None:
            self._alone(staged, MemoryError("no staging memory is left"))
        return staged.held is not None

    def _land(self, launched: Launched) -> None:
        staged = launched.staged
        batch, run = staged.batch, staged.run
        columns = results.check(launched.flight.land(), self._contract, staged.rows)
        run.executed_rows, run.stages.output = staged.rows, now_ns()
        self._pack(batch, run, columns)

    def _alone(self, staged: StagedBatch, error: Exception) -> None:
        """One run for each, here and now. Weakness: other batches wait meanwhile."""
        staged.discard()
        batch, run = staged.batch, staged.run

        def each() -> None:
            columns = self._isolated(batch, run, staged.arrays, staged.alive, error)
            run.stages.output = now_ns()
            self._payloads.verify(batch.tensors)
            if len(run.errors) < len(batch.requests):
                self._pack(batch, run, columns)

        self.complete(batch, run, each)


def _alive(batch: Batch, run: Run) -> Sequence[int]:
    everybody = range(len(batch.requests))
    return [p for p in everybody if p not in run.errors] if run.errors else everybody


def _nothing() -> None:
    return None
