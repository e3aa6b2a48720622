"""Connects the executor to the Triton server that its settings name."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from sits_core.metrics import BoundedLabel
from sits_core.settings import host_of
from sits_executor.background import Background
from sits_executor.repository.catalog import Catalog
from sits_executor.repository.loader import MakeRunner
from sits_executor.settings import ExecutorSettings
from sits_executor.triton.making import Maker
from sits_executor.triton.manager import TritonManager
from sits_executor.triton.server import TritonServer

_LOOPBACK = ("127.", "localhost", "::1")


def open_triton(
    settings: ExecutorSettings, catalog: Catalog, background: Background,
    make_runner: MakeRunner, registry: CollectorRegistry, label: BoundedLabel,
) -> TritonManager:  # fmt: skip
    """Connects to nothing yet: `load_all` does."""
    url = settings.executor_triton_url
    server = TritonServer(url, settings.executor_triton_timeout_s)
    maker = Maker(
        server,
        make_runner,
        queue_batches=settings.executor_queue_batches,
        share=host_of(url).startswith(_LOOPBACK) and settings.executor_triton_shm,
    )
    period_s = settings.executor_triton_period_s
    manager = TritonManager(server, catalog, background, maker, period_s)
    registry.register(TritonCollector(manager, label))
    return manager


class TritonCollector(Collector):
    """What the server counted itself, as of the last look: all its clients, not only us."""

    def __init__(self, manager: TritonManager, label: BoundedLabel) -> None:
        self._manager, self._label = manager, label

    def collect(self) -> Iterator[CounterMetricFamily]:
        counted = list(self._manager.counted.items())
        for name, text, number in (
            ("inferences", "Inferences that the Triton server counted", 0),
            ("executions", "Runs of the model that it counted", 1),
            ("failures", "Requests that failed there", 2),
            ("queue_seconds", "Time that requests waited there", 3),
            ("compute_seconds", "Time that it worked on them", 4),
        ):
            family = CounterMetricFamily(
                f"sits_executor_triton_{name}", text, labels=["model", "version"]
            )
            for (model, version), values in counted:
                family.add_metric([self._label(model), version], values[number])
            yield family
