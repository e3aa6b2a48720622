"""What the response cache counts for scrapers."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from sits_core.metrics import BoundedLabel
from sits_preprocess.cache.memory import Memory


class CacheMetrics:
    """A child of a labelled metric is looked up once: asking for it takes longer than counting."""

    def __init__(self, registry: CollectorRegistry, memory: Memory) -> None:
        self._lookups = Counter(
            "sits_response_cache_lookups",
            "Requests by where their answer was found",
            ["model", "result"],
            registry=registry,
        )
        self._unkept = Counter(
            "sits_response_cache_unkept",
            "Answers that were not kept, by why",
            ["reason"],
            registry=registry,
        )
        size = Gauge(
            "sits_response_cache_bytes", "Bytes of answers in this process", registry=registry
        )
        answers = Gauge("sits_response_cache_answers", "Answers in this process", registry=registry)
        size.set_function(lambda: memory.size_bytes)
        answers.set_function(lambda: len(memory))
        self._label = BoundedLabel()
        self._children: dict[tuple[str, str], Counter] = {}

    def looked_up(self, model: str, result: str) -> None:
        """`result`: memory, redis, stale, joined or miss."""
        child = self._children.get((model, result))
        if child is None:
            child = self._lookups.labels(self._label(model), result)
            self._children[model, result] = child
        child.inc()

    def unkept(self, reason: str) -> None:
        self._unkept.labels(reason).inc()
