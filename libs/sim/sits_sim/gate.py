"""What stands at a front door before its queue: may this request still make it?"""

from typing import Final

from sits_scheduling.batching import BatchQueue
from sits_scheduling.deadlines import Admission, Load
from sits_scheduling.entry import Entry
from sits_scheduling.quotas import Refusal
from sits_scheduling.service_times import ServiceTimes
from sits_scheduling.tenants import Tenants
from sits_sim.batch import MODEL, Batch

QUANTILE: Final = 0.99


class Gate:
    """Asks `Admission` with what the front door knows, and tells it what came of it.

    A batch counts as reserved until its result is back, so that the way to an instance and
    back is part of the wait and not added to it. Costs of entries are rows; they become time
    by what a row takes in a full batch.
    """

    def __init__(self, tenants: Tenants, queue: BatchQueue[int]) -> None:
        self._admission = Admission(overhead_ns=0)
        self._tenants, self._queue = tenants, queue
        self._service = ServiceTimes()
        self._in_flight_ns = 0.0
        self._judged: dict[int, tuple[Load, Entry[int]]] = {}

    def __repr__(self) -> str:
        return f"<Gate {self._admission!r} {self._service!r}>"

    def refusal(self, entry: Entry[int], now_ns: int, parallel: int, idle: int) -> Refusal | None:
        """None = the request may queue."""
        rows = self._queue.policy.max_rows or entry.rows
        ahead = self._queue.cost_ahead(entry.tenant, entry.cost)
        load = Load(ahead * self._service.row_ns(MODEL, rows), self._in_flight_ns, parallel, idle)
        run_ns = self._service.quantile_ns(MODEL, rows, QUANTILE)
        tier = self._tenants.of(entry.tenant).tier
        refusal = self._admission.decide(now_ns, entry.deadline_ns, run_ns, load, tier)
        if refusal is None:
            self._judged[entry.item] = load, entry
        return refusal

    def sent(self, batch: Batch) -> None:
        batch.expected_ns = self._service.expected_ns(MODEL, batch.rows)
        self._in_flight_ns += batch.expected_ns

    def returned(self, batch: Batch, now_ns: int, run_ns: int) -> None:
        """What its requests did not run, they waited."""
        self._in_flight_ns = max(0.0, self._in_flight_ns - batch.expected_ns)
        self._service.observe(MODEL, batch.rows, batch.instance, run_ns)
        for request in batch.requests:
            self._learn(request, now_ns - run_ns)

    def expired(self, request: int, now_ns: int) -> None:
        """It was dropped while it waited. Without these, only those that were lucky would
        teach how long one waits."""
        self._learn(request, now_ns)

    def _learn(self, request: int, started_ns: int) -> None:
        load, entry = self._judged.pop(request)
        tier = self._tenants.of(entry.tenant).tier
        self._admission.learn(tier, load, started_ns - entry.arrived_ns)
