"""Several queues for the same instances: which of them goes next, and what goes before new work."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from sits_scheduling.entry import Entry
from sits_scheduling.tenants import Tenant, Tenants, charge


class Queue(Protocol):
    """A `BatchQueue` with work in it."""

    def oldest_ns(self) -> int: ...
    def least(self, of: Mapping[str, float]) -> float: ...
    def waiting(self) -> Sequence[tuple[Tenant, float]]: ...


class Turns:
    """Requests that may not share a run wait in queues of their own, and tenants take turns among
    these as they do within each: else a tenant with many shapes, or a parameter that is never the
    same, would be many queues, and whoever comes later would wait for all of them.

    Start-time fair queueing (Goyal, Vin and Cheng 1996): the queue is next in which the tenant
    waits that was served least for its weight; of several, the one that waits longest. Whoever
    had nothing waiting counts as served as much as the one whose turn it is, so that nothing is
    saved up. Runs are charged by their time, where it is known, since many small ones take longer
    than few large ones. Nothing is charged while there is one queue, whose own ring decides.

    Not thread-safe. Weaknesses: a priority orders requests within a queue only; with several
    tenants all queues are looked at for each batch.
    """

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants
        self._seen: set[str] = set()
        self._served: dict[str, float] = {}
        self._least = 0.0

    def __repr__(self) -> str:
        return f"<Turns {len(self._served)} tenants, each served {self._least:.0f} at least>"

    def came(self, tenant: str) -> None:
        """Somebody of this name has work now. While nobody else had any, arrival decides."""
        if tenant not in self._seen:
            self._seen.add(self._tenants.of(tenant).name)

    def key(self, queue: Queue) -> tuple[float, int]:
        """Queues with less go first."""
        if len(self._seen) < 2:
            return 0.0, queue.oldest_ns()
        return max(self._least, queue.least(self._served)), queue.oldest_ns()

    def took(self, turn: float, entries: Sequence[Entry[Any]], run_ns: float, now_ns: int) -> None:
        """These left together the queue whose turn it was, `turn` being the first of its `key`.
        Their run takes `run_ns`; 0 = nobody knows."""
        if len(self._seen) < 2:
            return
        self._least = max(self._least, turn)
        each = run_ns / (sum([entry.cost for entry in entries]) or 1.0) if run_ns else 1.0
        for entry in entries:
            tenant = self._tenants.of(entry.tenant)
            cost = charge(entry.cost * each, entry.level, now_ns - entry.arrived_ns)
            self._served[tenant.name] = self._at(tenant) + cost / tenant.weight

    def cost_ahead(self, queues: Iterable[Queue], tenant: str, cost: float) -> float:
        """As `WorkQueue.cost_ahead`, over all of them."""
        waiting: dict[str, float] = {}
        weights: dict[str, float] = {}
        for queue in queues:
            for other, its in queue.waiting():
                waiting[other.name] = waiting.get(other.name, 0.0) + its
                weights[other.name] = other.weight
        own = self._tenants.of(tenant)
        mine = waiting.pop(own.name, 0.0)
        share = (mine + cost) / own.weight
        return mine + sum([min(its, share * weights[name]) for name, its in waiting.items()])

    def _at(self, tenant: Tenant) -> float:
        return max(self._least, self._served.get(tenant.name, 0.0))
