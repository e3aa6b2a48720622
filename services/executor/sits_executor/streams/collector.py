"""Metrics of streams, graphs, buffers and device memory, read when they are scraped."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sits_executor.backends.budget import Budget
from sits_executor.streams.model import StreamModel
from sits_executor.streams.scheduler import StreamScheduler

Sample = tuple[tuple[str, ...], float]


class StreamCollector(Collector):
    """`label` bounds the names of models. Versions of one model add up."""

    def __init__(
        self, scheduler: StreamScheduler, staging: Budget, label: Callable[[str], str]
    ) -> None:
        self._scheduler, self._staging, self._label = scheduler, staging, label

    def collect(self) -> Iterator[Metric]:
        scheduler, models = self._scheduler, self._scheduler.models
        yield _gauge("streams_running", "Batches on the GPU", (), [((), len(scheduler.running))])
        yield _gauge("device_lost", "1 = the GPU failed for good", (),
                     [((), float(scheduler.lost is not None))])  # fmt: skip
        yield _gauge("staging_bytes", "Pinned host memory held", (), [((), self._staging.used)])
        yield _counter("share_changes", "Times the shares of the GPU were decided anew", (),
                       [((), scheduler.shares.reallocations)])  # fmt: skip
        shares = scheduler.shares.by_model()
        yield _gauge("share", "Part of the GPU's time that a model is due", ("model",),
                     [((self._of(m),), shares.get(m.name, 0.0)) for m in models])  # fmt: skip
        yield _gauge("buffer_samples", "Samples in the queue, staged, and on the GPU",
                     ("model", "buffer"), self._buffers(models))  # fmt: skip
        yield from self._graphs(models)
        if models:
            memory = models[0].backend.memory()
            yield _gauge("gpu_memory_bytes", "GPU memory of this process, and its limit",
                         ("kind",), [(("allocated",), memory.allocated),
                                     (("reserved",), memory.reserved),
                                     (("budget",), memory.budget)])  # fmt: skip

    def _graphs(self, models: Iterable[StreamModel]) -> Iterator[Metric]:
        stats = [((self._of(m),), m.backend.stats) for m in models]
        yield _gauge("graphs", "Captured graphs", ("model",), [(k, s.graphs) for k, s in stats])
        yield _counter("graph_replays", "Batches run by a graph", ("model",),
                       [(k, s.replays) for k, s in stats])  # fmt: skip
        yield _counter("eager_runs", "Batches run without a graph", ("model",),
                       [(k, s.eager_runs) for k, s in stats])  # fmt: skip
        yield _counter("padded_rows", "Rows run for nothing, to fill a graph", ("model",),
                       [(k, s.padded_rows) for k, s in stats])  # fmt: skip
        yield _counter("graph_fallbacks", "Graphs that were not made or not trusted",
                       ("model", "reason"),
                       [((*k, reason), n) for k, s in stats for reason, n in s.fallbacks.items()],
                       )  # fmt: skip

    def _buffers(self, models: Iterable[StreamModel]) -> list[Sample]:
        return [
            ((self._of(model), buffer), held)
            for model in models
            for buffer, held in model.buffers.held().items()
        ]

    def _of(self, model: StreamModel) -> str:
        return self._label(model.name.rpartition("/")[0])


def _gauge(name: str, text: str, labels: tuple[str, ...], samples: Iterable[Sample]) -> Metric:
    return _filled(GaugeMetricFamily(f"sits_executor_{name}", text, labels=labels), samples)


def _counter(name: str, text: str, labels: tuple[str, ...], samples: Iterable[Sample]) -> Metric:
    return _filled(CounterMetricFamily(f"sits_executor_{name}", text, labels=labels), samples)


def _filled(
    family: GaugeMetricFamily | CounterMetricFamily, samples: Iterable[Sample]
) -> GaugeMetricFamily | CounterMetricFamily:
    sums: dict[tuple[str, ...], float] = {}
    for labels, value in samples:
        sums[labels] = sums.get(labels, 0.0) + value
    for labels, value in sums.items():
        family.add_metric(list(labels), value)
    return family
