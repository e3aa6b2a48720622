"""Micro-batches that wait for a free executor: tenants take turns, in the order of the strategy."""

from collections.abc import Callable, Iterator

from sits_core.clock import now_ns
from sits_dispatcher.job import Job
from sits_scheduling.entry import DEFAULT_PRIORITY, Entry
from sits_scheduling.orders import Order
from sits_scheduling.queueing import WorkQueue
from sits_scheduling.tenants import Tenants


class Pending:
    """Bounded. Not thread-safe: the dispatcher's lock covers it.

    A switched strategy takes hold when its model is looked at next.
    """

    def __init__(self, capacity: int, order_of: Callable[[str], Order], tenants: Tenants) -> None:
        self._capacity, self._order_of, self._tenants = capacity, order_of, tenants
        self._queues: dict[str, WorkQueue[Job]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def add(self, job: Job, *, force: bool = False) -> bool:
        """False when full. `force` is for jobs that were accepted before."""
        if len(self) >= self._capacity and not force:
            return False
        queue = self._queues.get(job.model)
        if queue is None:
            order = self._order_of(job.model)
            queue = self._queues[job.model] = WorkQueue(order, self._tenants)
        queue.add(_entry(job))
        return True

    def first(self, model: str) -> Job | None:
        queue = self._queues.get(model)
        if queue is None:
            return None
        order = self._order_of(model)
        if queue.order is not order:
            queue.set_order(order)
        entry = queue.first(now_ns())
        return entry.item if entry is not None else None

    def pop(self, model: str) -> None:
        """Take out what `first` returned."""
        queue = self._queues[model]
        queue.take(now_ns())
        self._forget_if_empty(model, queue)

    def models(self) -> list[str]:
        return list(self._queues)

    def jobs(self) -> Iterator[Job]:
        """All that wait."""
        return (entry.item for queue in self._queues.values() for entry in queue.entries())

    def remove(self, unwanted: Callable[[Job], bool]) -> list[Job]:
        """Take out all jobs that match."""
        removed: list[Job] = []
        for model, queue in list(self._queues.items()):
            for entry in list(_matching(queue, unwanted)):
                queue.remove(entry)
                removed.append(entry.item)
            self._forget_if_empty(model, queue)
        return removed

    def _forget_if_empty(self, model: str, queue: WorkQueue[Job]) -> None:
        if not len(queue):
            del self._queues[model]

    def __repr__(self) -> str:
        return f"<Pending {len(self)}/{self._capacity} for {len(self._queues)} models>"


def _entry(job: Job) -> Entry[Job]:
    header = job.header
    return Entry(
        job, header.rows, header.payload_bytes, job.received_ns,
        header.earliest_deadline_unix_ns, header.priority or DEFAULT_PRIORITY, header.tenant,
    )  # fmt: skip


def _matching(queue: WorkQueue[Job], wanted: Callable[[Job], bool]) -> Iterator[Entry[Job]]:
    return (entry for entry in queue.entries() if wanted(entry.item))
