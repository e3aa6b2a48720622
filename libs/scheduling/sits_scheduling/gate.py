"""What stands before a model's queue: may this request still make it, and may its tenant ask?"""

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple, Protocol

from sits_scheduling.deadlines import Admission, Load
from sits_scheduling.quotas import UNLIMITED, Bucket, Reason, Refusal
from sits_scheduling.service_times import ServiceTimes
from sits_scheduling.tenants import Tenants, Tier

QUANTILE: Final = 0.99
RETRY_SHED_MS: Final = 1_000
"""Shed work is asked to come back after a second: governance looks about that often."""
SURE_FACTOR: Final = 8.0
SURE_NS: Final = 50_000_000
"""A deadline this many times further away than predicted, and so much more, is met for sure:
even the lightest of the tenants gets a seventh of the turns."""
DOUBT_NS: Final = 1_000_000_000
"""How often one is let in that could start at once and, it seems, cannot make it."""


class Request(Protocol):
    """What is judged; every `Entry` is one."""

    judged_wait_ns: float

    @property
    def tenant(self) -> str: ...
    @property
    def cost(self) -> float: ...
    @property
    def arrived_ns(self) -> int: ...
    @property
    def deadline_ns(self) -> int: ...


class Backlog(Protocol):
    """What waits, one queue or several together. Costs are rows."""

    def cost_ahead(self, tenant: str, cost: float) -> float: ...
    def waiting_cost(self, tenant: str) -> float: ...


class Room(Protocol):
    """Instances that run batches of the model at once, and how many are idle."""

    @property
    def parallel(self) -> int: ...
    @property
    def idle(self) -> int: ...


class Needs(NamedTuple):
    """The time that a tenant's next request must have left to be let in, of which `wait_ns` is
    the predicted wait; both grow by `row_ns` with every row let in before it."""

    time_ns: float
    wait_ns: float
    row_ns: float


NOTHING_NEEDED: Final = Needs(0.0, 0.0, 0.0)


class _Run(NamedTuple):
    expected_ns: float
    most_ns: float


class Gate:
    """Asks in order of cost: is the tier shed, has the tenant quota left, can it be in time?

    It keeps what its questions need: run times, what is on its way to instances, one
    bucket a tenant. A batch counts as under way until its result is back, so that the way
    there and back is part of the wait and not added to it. Rows become time by what a row
    takes in a full batch. What could start at once, but seems to run too long, is let in once
    in `DOUBT_NS`: else an estimate that is too high would keep away what corrects it. The
    model's run times must be learnt through this gate only.

    `shed` holds the tiers that governance refuses. `buckets` may be shared by the gates of
    all models, so that a tenant's rate counts over all of them. Not thread-safe. Weakness:
    sees what this front door sent; what others send shows only in the learnt correction.
    """

    def __init__(
        self,
        model: str,
        tenants: Tenants,
        times: ServiceTimes,
        admission: Admission,
        buckets: dict[str, Bucket] | None = None,
    ) -> None:
        self._model, self._tenants, self._times = model, tenants, times
        self._admission = admission
        self._buckets = {} if buckets is None else buckets
        self._runs: dict[int, _Run] = {}
        self._under_way_ns = 0.0
        self._doubted_ns = 0
        self.shed: Collection[Tier] = ()

    @property
    def under_way_ns(self) -> float:
        """Predicted time of all batches that are on their way."""
        return self._under_way_ns

    def __repr__(self) -> str:
        return f"<Gate {self._model} {self._under_way_ns / 1e6:.1f} ms under way>"

    def judge(
        self,
        entry: Request,
        backlog: Backlog,
        room: Room,
        full_rows: int,
        now_ns: int,
        *,
        take: bool = True,
    ) -> Refusal | None:
        """None = the request may queue. `full_rows`: of the model's largest batch. Not `take`: it
        will be judged again, and takes nothing of its tenant's quota yet."""
        tenant = self._tenants.of(entry.tenant)
        if tenant.tier in self.shed:
            return Refusal(Reason.SHED, 0, RETRY_SHED_MS)
        load = self._load(entry, backlog, room, full_rows)
        # One that starts at once runs alone.
        rows = full_rows if load.wait_ns else max(1, int(entry.cost))
        run_ns = self._run(rows).most_ns
        refusal = self._admission.decide(now_ns, entry.deadline_ns, run_ns, load, tenant.tier)
        if refusal and not load.wait_ns and self._doubts(now_ns):
            refusal = None
        if refusal is None:
            # Last, since an admitted request is what takes tokens.
            waiting = backlog.waiting_cost(entry.tenant)
            bucket = self._bucket(entry.tenant)
            refusal = bucket.admit(entry.cost, waiting, now_ns, take=take)
        entry.judged_wait_ns = load.wait_ns
        return refusal

    def needs(self, entry: Request, backlog: Backlog, room: Room, full_rows: int) -> Needs:
        """As `judge` sees it when there is a wait; for many that come together."""
        tier, run = self._tenants.of(entry.tenant).tier, self._run(full_rows)
        load = self._load(entry, backlog, room, full_rows)
        row = Load(run.expected_ns / max(1, full_rows), 0.0, room.parallel, 0)
        wait_ns = self._admission.careful_wait_ns(load, tier)
        time_ns = wait_ns + run.most_ns + self._admission.overhead_ns
        return Needs(time_ns, wait_ns, self._admission.careful_wait_ns(row, tier))

    def unlimited(self, entry: Request) -> bool:
        """Its tenant has no quota: what holds for this request holds for its next."""
        return self._tenants.of(entry.tenant).quota == UNLIMITED

    def surely_ns(self, waiting: float, room: Room, full_rows: int) -> float:
        """How far away a deadline must be to be met for sure, as far as can be predicted:
        several times what everything that waits and is under way takes. Such requests need not
        be judged one by one, unless tiers are shed or tenants have quotas."""
        run = self._run(full_rows)
        everything_ns = waiting * run.expected_ns / max(1, full_rows) + self._under_way_ns
        wait_ns = self._admission.longest_wait_ns(everything_ns / max(1, room.parallel))
        return SURE_FACTOR * (wait_ns + run.most_ns) + SURE_NS

    def run_ns(self, rows: int) -> float:
        """Of a batch of so many rows, as predicted; 0 = nothing is known."""
        return self._run(rows).expected_ns

    def sent(self, rows: int) -> float:
        """A batch left. Returns what `returned` needs back."""
        expected_ns = self._run(rows).expected_ns
        self._under_way_ns += expected_ns
        return expected_ns

    def returned(
        self,
        entries: Iterable[Request],
        rows: int,
        instance: str,
        expected_ns: float,
        ran_ns: float,
        now_ns: int,
    ) -> None:
        """Its result came; `ran_ns` 0 = it did not run. What its requests did not run, they
        waited."""
        self._under_way_ns = max(0.0, self._under_way_ns - expected_ns)
        if ran_ns > 0:
            self._times.observe(self._model, rows, instance, ran_ns)
            self._runs.clear()
            for entry in entries:
                self._learn(entry, now_ns - ran_ns)

    def gave_up(self, entry: Request, now_ns: int) -> None:
        """It was dropped while it waited. Without these, only those that were lucky would
        teach how long one waits."""
        self._learn(entry, now_ns)

    def _run(self, rows: int) -> _Run:
        """Predicted anew only after something was learnt: every batch asks."""
        run = self._runs.get(rows)
        if run is None:
            run = self._runs[rows] = _Run(
                self._times.expected_ns(self._model, rows),
                self._times.quantile_ns(self._model, rows, QUANTILE),
            )
        return run

    def _doubts(self, now_ns: int) -> bool:
        if now_ns - self._doubted_ns < DOUBT_NS:
            return False
        self._doubted_ns = now_ns
        return True

    def _load(self, entry: Request, backlog: Backlog, room: Room, full_rows: int) -> Load:
        ahead = backlog.cost_ahead(entry.tenant, entry.cost)
        row_ns = self._run(full_rows).expected_ns / max(1, full_rows)
        return Load(ahead * row_ns, self._under_way_ns, room.parallel, room.idle)

    def _learn(self, entry: Request, started_ns: float) -> None:
        tier = self._tenants.of(entry.tenant).tier
        judged = Load(entry.judged_wait_ns, 0.0, 1, 0)
        self._admission.learn(tier, judged, started_ns - entry.arrived_ns)

    def _bucket(self, name: str) -> Bucket:
        tenant = self._tenants.of(name)
        bucket = self._buckets.get(tenant.name)
        if bucket is None:
            bucket = self._buckets[tenant.name] = Bucket(tenant.quota)
        return bucket
