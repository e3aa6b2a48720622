"""What `ModelStatistics` counts: requests, batches and the time they took, by model version.

Stages are counted for every request that ran, rows and executions where it succeeded. As in
Triton, a pipeline's stages are the sums of its steps', and each step counts for its own model;
a request that the response cache answers is a success that waited for nothing, and no inference.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from sits_core.errors import SitsError
from sits_preprocess.catalog import Model
from sits_preprocess.request import Answered, Run, StepRun
from sits_protos.oip import grpc_service_pb2 as pb

MAX_MODELS = 4096
"""Model versions counted at once. The one idle for longest makes room, so that models
that come and go do not pile up."""

MAX_BATCH_SIZES = 256
"""Batch sizes listed apart for a model; others are counted at the next power of two."""

REMEMBERED_EXECUTIONS = 256
"""The answers of one execution come together, one after the other on one thread; as many
threads as there are links may interleave."""

Execution = tuple[str, int, int]
_Ended = tuple[Answered, SitsError | None]


class Statistics:
    """Cumulative counters that only grow. Safe from any thread. `settled` waits until all that
    was answered is counted."""

    def __init__(self, max_models: int = MAX_MODELS) -> None:
        self.settled: Callable[[], None] = lambda: None
        self._max_models = max_models
        self._counters: dict[tuple[str, str], _Counters] = {}
        self._lock = threading.Lock()

    def record(
        self, answered: Sequence[Answered], errors: Sequence[SitsError | None], ended_ns: int
    ) -> None:
        """Requests answered at `ended_ns`, each with the error that its client got or None.

        Those that ran together follow each other and share their `Run`; a model's lock is
        taken once for all of them.
        """
        for (model, version, run), part in groupby(zip(answered, errors, strict=True), _group):
            if model:
                counters = self._of((model, version))
                with counters.lock:
                    counted = counters.count(run, part, ended_ns)
                for step in run.steps:
                    own = self._of((step.model, step.version))
                    with own.lock:
                        own.count_step(step, counted, ended_ns)

    def found(self, model: str, version: str, took_ns: int) -> None:
        """The response cache had an answer; looking for it took so long."""
        counters = self._of((model, version))
        with counters.lock:
            counters.cache_hit.add(1, took_ns)

    def missed(self, model: str, version: str, took_ns: int) -> None:
        """It had none; looking for it, and keeping it later, took so long."""
        counters = self._of((model, version))
        with counters.lock:
            counters.cache_miss.add(1, took_ns)

    def record_refused(self, model: tuple[str, str], requests: int, took_ns: int) -> None:
        """So many that came and were refused together."""
        counters = self._of(model)
        with counters.lock:
            counters.count_refused(requests, took_ns)

    def report(self, models: Iterable[Model]) -> pb.ModelStatisticsResponse:
        """The counters of each of `models`, in their order; zeros for one never asked."""
        self.settled()
        response = pb.ModelStatisticsResponse()
        for model in models:
            stats = response.model_stats.add(name=model.name, version=model.version)
            counters = self._counters.get((model.name, model.version)) or _Counters()
            with counters.lock:
                counters.write(stats)
        return response

    def _of(self, key: tuple[str, str]) -> "_Counters":
        return self._counters.get(key) or self._add(key)

    def _add(self, key: tuple[str, str]) -> "_Counters":
        with self._lock:
            while len(self._counters) >= self._max_models and key not in self._counters:
                idle = min(self._counters, key=lambda k: self._counters[k].last_ns)
                del self._counters[idle]
            return self._counters.setdefault(key, _Counters())

    def __repr__(self) -> str:
        return f"<Statistics of {len(self._counters)} model versions>"


class _Counted(NamedTuple):
    """Successful requests and their rows, and whether their run was not counted before."""

    requests: int
    rows: int
    fresh: bool


class _Parts(NamedTuple):
    """The three parts of an execution, in nanoseconds; `queue`: what steps waited."""

    input: int
    infer: int
    output: int
    queue: int = 0


class _Sum:
    """How often something took place and how long it took in all."""

    __slots__ = ("count", "ns")

    def __init__(self) -> None:
        self.count = self.ns = 0

    def add(self, count: int, ns: int) -> None:
        self.count += count
        # Stages are stamped by different hosts, whose clocks may differ by more than the
        # stage takes.
        self.ns += max(0, ns)

    def write(self, target: pb.StatisticDuration) -> None:
        target.count, target.ns = self.count, self.ns


class _Compute:
    """The three parts of an execution."""

    __slots__ = ("infer", "input", "output")

    def __init__(self) -> None:
        self.input, self.infer, self.output = _Sum(), _Sum(), _Sum()

    def add(self, count: int, parts: _Parts) -> None:
        """`count` requests that ran together, each of which took all of the time."""
        self.input.add(count, count * parts.input)
        self.infer.add(count, count * parts.infer)
        self.output.add(count, count * parts.output)

    def write(self, target: pb.InferStatistics | pb.InferBatchStatistics) -> None:
        self.input.write(target.compute_input)
        self.infer.write(target.compute_infer)
        self.output.write(target.compute_output)


class _Counters:
    """One model version. Callers hold `lock`."""

    __slots__ = (
        "_batches", "_compute", "_executions", "_fail", "_order", "_queue", "_recent", "_rows",
        "_success", "cache_hit", "cache_miss", "last_ns", "lock",
    )  # fmt: skip

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.last_ns = 0
        self._rows = self._executions = 0
        self._success, self._fail, self._queue = _Sum(), _Sum(), _Sum()
        self.cache_hit, self.cache_miss = _Sum(), _Sum()
        self._compute = _Compute()
        self._batches: dict[int, _Compute] = {}
        self._recent: set[Execution] = set()
        self._order: deque[Execution] = deque()

    def count(self, run: Run, part: Iterable[_Ended], ended_ns: int) -> _Counted:
        times, parts, fresh = run.times, _parts(run), False
        ended_ns = times.returned or ended_ns
        ok = rows = ok_ns = failed = failed_ns = queue_ns = 0
        for (request, _), error in part:
            total_ns = max(0, ended_ns - request.received_ns)
            waited_ns = times.input_started - (request.queued_ns or request.received_ns)
            waited_ns += parts.queue
            queue_ns += max(0, min(waited_ns, total_ns))
            if error is None:
                ok, rows, ok_ns = ok + 1, rows + request.rows, ok_ns + total_ns
            else:
                failed, failed_ns = failed + 1, failed_ns + total_ns
        self._success.add(ok, ok_ns)
        self._fail.add(failed, failed_ns)
        if run.cached:
            self._queue.add(ok, 0)
            return _Counted(0, 0, False)
        self._rows += rows
        if times.infer_started:
            self.last_ns = max(self.last_ns, ended_ns)
            self._queue.add(ok + failed, queue_ns)
            self._compute.add(ok + failed, parts)
            fresh = ok > 0 and self._count_execution(run, parts)
        return _Counted(ok, rows, fresh)

    def count_refused(self, requests: int, took_ns: int) -> None:
        self._fail.add(requests, requests * took_ns)

    def count_step(self, step: StepRun, counted: _Counted, ended_ns: int) -> None:
        """One run as a step of a pipeline, for requests that came through all of it."""
        parts = _Parts(step.input_ns, step.infer_ns, step.output_ns)
        total_ns = step.queue_ns + parts.input + parts.infer + parts.output
        self.last_ns = max(self.last_ns, ended_ns)
        self._rows += counted.rows
        self._success.add(counted.requests, counted.requests * total_ns)
        self._queue.add(counted.requests, counted.requests * step.queue_ns)
        self._compute.add(counted.requests, parts)
        if counted.fresh:
            self._executions += 1
            self._batch(step.rows).add(1, parts)

    def _count_execution(self, run: Run, parts: _Parts) -> bool:
        """Once for all the requests that ran together; failed ones do not say with whom.
        Whether it was the first time.

        A batch may run in parts, some of them on the same instance: they differ in when
        they started.
        """
        execution = (run.instance, run.execution, run.times.infer_started)
        if execution in self._recent:
            return False
        if len(self._order) == REMEMBERED_EXECUTIONS:
            self._recent.discard(self._order.popleft())
        self._order.append(execution)
        self._recent.add(execution)
        self._executions += 1
        self._batch(run.rows).add(1, parts)
        return True

    def _batch(self, rows: int) -> _Compute:
        if rows not in self._batches and len(self._batches) >= MAX_BATCH_SIZES:
            rows = 1 << (rows - 1).bit_length()
        return self._batches.setdefault(rows, _Compute())

    def write(self, stats: pb.ModelStatistics) -> None:
        stats.last_inference = self.last_ns // 1_000_000
        stats.inference_count, stats.execution_count = self._rows, self._executions
        self._success.write(stats.inference_stats.success)
        self._fail.write(stats.inference_stats.fail)
        self._queue.write(stats.inference_stats.queue)
        self._compute.write(stats.inference_stats)
        self.cache_hit.write(stats.inference_stats.cache_hit)
        self.cache_miss.write(stats.inference_stats.cache_miss)
        for rows in sorted(self._batches):
            self._batches[rows].write(stats.batch_stats.add(batch_size=rows))


def _parts(run: Run) -> _Parts:
    """Of a pipeline: its own reading and packing, and what its steps took."""
    times = run.times
    infer_ended = times.output_started or times.infer_started
    parts = _Parts(
        times.infer_started - times.input_started,
        infer_ended - times.infer_started,
        times.executor_sent - infer_ended,
    )
    if not run.steps:
        return parts
    return _Parts(
        parts.input + sum(step.input_ns for step in run.steps),
        sum(step.infer_ns for step in run.steps),
        parts.output + sum(step.output_ns for step in run.steps),
        sum(step.queue_ns for step in run.steps),
    )


def _group(ended: _Ended) -> tuple[str, str, Run]:
    (request, answer), _ = ended
    return request.model, request.version, answer.run
