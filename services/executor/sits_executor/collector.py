"""Metrics that are read off the loaded models when they are scraped."""

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sits_executor.repository.catalog import Catalog
from sits_executor.repository.loaded import LoadedModel


class ModelCollector(Collector):
    """Sums over the versions of a model; `label` bounds the names."""

    def __init__(self, catalog: Catalog, label: Callable[[str], str]) -> None:
        self._catalog, self._label = catalog, label

    def collect(self) -> Iterator[Metric]:
        yield self._gauge("sits_executor_queue_batches", "Batches waiting", lambda m: len(m.queue))
        yield self._gauge("sits_executor_model_ready", "Versions that serve", lambda m: 1)
        yield self._gauge(
            "sits_executor_cpu_fallback",
            "Versions that asked for a GPU and run on the CPU",
            lambda m: int(bool(m.backend.fallback)),
        )

    def _gauge(
        self, name: str, text: str, value: Callable[[LoadedModel], int]
    ) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, text, labels=["model"])
        sums: Counter[str] = Counter()
        for model in self._catalog.loaded():
            sums[self._label(model.entry.name)] += value(model)
        for label, total in sums.items():
            family.add_metric([label], total)
        return family
