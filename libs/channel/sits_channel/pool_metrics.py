"""A payload pool as Prometheus metrics."""

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from sits_channel.pool import PayloadPool
from sits_core.clock import now_ns


class PoolCollector(Collector):
    """Read when scraped. An old oldest slot shows a leak."""

    def __init__(self, pool: PayloadPool) -> None:
        self._pool = pool

    def collect(self) -> Iterator[Metric]:
        stats = self._pool.stats()
        age_s = (now_ns() - stats.oldest_unix_ns) / 1e9 if stats.oldest_unix_ns else 0.0
        for name, text, value in (
            ("sits_pool_capacity_bytes", "Size of the payload pool", stats.capacity_bytes),
            ("sits_pool_used_bytes", "Bytes in slots that are lent", stats.used_bytes),
            ("sits_pool_slots", "Slots that are lent", stats.slots_in_use),
            ("sits_pool_oldest_slot_seconds", "Age of the slot that is lent longest", age_s),
        ):
            yield GaugeMetricFamily(name, text, value=value)
        for name, text, value in (
            ("sits_pool_allocations", "Slots ever lent", stats.allocations),
            ("sits_pool_refusals", "Payloads sent inline for want of room", stats.refusals),
            ("sits_pool_reclaimed", "Slots taken back from dead peers", stats.reclaimed),
        ):
            yield CounterMetricFamily(name, text, value=value)
