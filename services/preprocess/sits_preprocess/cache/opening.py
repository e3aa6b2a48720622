"""Makes the response cache that the settings ask for."""

from prometheus_client import CollectorRegistry

from sits_core.redis_answers import connect_answers
from sits_preprocess.cache.engine import CachedEngine
from sits_preprocess.cache.memory import Memory
from sits_preprocess.cache.metrics import CacheMetrics
from sits_preprocess.cache.rules import Rules
from sits_preprocess.cache.shared import Shared
from sits_preprocess.inference import Engine
from sits_preprocess.settings import PreprocessSettings
from sits_preprocess.statistics import Statistics


def open_cache(
    settings: PreprocessSettings,
    engine: Engine,
    statistics: Statistics,
    registry: CollectorRegistry,
) -> CachedEngine | None:
    """None when it is off: then nothing of it is in a request's way. Does not connect. Raises
    `SettingsError` for Redis settings that cannot be used."""
    if not settings.preprocess_response_cache_bytes:
        return None
    memory = Memory(settings.preprocess_response_cache_bytes)
    metrics = CacheMetrics(registry, memory)
    shared = open_shared(settings, metrics, registry)
    rules = Rules(settings.preprocess_response_cache_ttl_s)
    return CachedEngine(engine, rules, memory, shared, statistics, metrics)


def open_shared(
    settings: PreprocessSettings, metrics: CacheMetrics, registry: CollectorRegistry
) -> Shared | None:
    max_bytes = settings.preprocess_response_cache_redis_bytes
    store = connect_answers(settings, registry) if max_bytes else None
    if store is None:
        return None
    wait_s = settings.preprocess_response_cache_redis_wait_ms / 1e3
    return Shared(store, max_bytes, wait_s, metrics)
