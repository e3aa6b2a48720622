"""Looks at the mesh once in a while, and says what is to be done about what it sees."""

from collections import deque
from collections.abc import Callable

import structlog

from sits_dispatcher.dispatcher import Dispatcher
from sits_dispatcher.metrics import Metrics
from sits_dispatcher.weights import Weights
from sits_protos.v1 import control_pb2 as pb
from sits_scheduling.governance import EVENTS_KEPT, Event, Governor, Plan
from sits_scheduling.signals import SIGNALS, Sample

log = structlog.get_logger()

EVENTS_SHOWN = 20


class Governance:
    """`Governor` over the signals of a running mesh.

    Acted on through the fronts' credits (`changed` says when): shed tiers, cheaper versions and
    smaller micro-batches. By the dispatcher: waiting work is placed anew, and breakers of
    faulty executors open. The wanted capacity is a metric and in Redis, and so is each step.
    With `acts` false it watches and tells, and nobody is asked for anything.
    """

    def __init__(
        self, dispatcher: Dispatcher, weights: Weights, metrics: Metrics, period_s: float,
        *, acts: bool = True,
    ) -> None:  # fmt: skip
        self._dispatcher, self._weights, self._metrics = dispatcher, weights, metrics
        self._period_ns = int(period_s * 1e9)
        self._governor = Governor()
        self._looked_ns = 0
        self.sample = Sample()
        self.plan = self.orders = self._governor.plan()
        self.acts = acts
        self.changed: Callable[[], object] = lambda: None
        self.untold: deque[Event] = deque(maxlen=EVENTS_KEPT)
        """Steps that are not in Redis yet, the oldest first."""

    def __repr__(self) -> str:
        return f"<Governance {self._governor!r}>"

    def tick(self, now: int) -> None:
        """Call often, from one thread: load is what it is on average."""
        self._dispatcher.measure_load()
        if now - self._looked_ns >= self._period_ns:
            self._looked_ns = now
            self.look(self._dispatcher.sample(self._weights.snapshots(), now), now)

    def look(self, sample: Sample, now: int) -> None:
        """Take in a sample and do what it asks for."""
        before, events = self.plan, self._governor.events
        last = events[-1] if events else None
        self.sample, self.plan = sample, self._governor.look(sample, now)
        self._metrics.governed(self.plan, sample)
        if events and events[-1] is not last:
            self._metrics.stepped(events[-1])
            self.untold.append(events[-1])
            _tell(events[-1])
        if self.acts:
            self._act(before, now)

    def _act(self, before: Plan, now: int) -> None:
        if self.plan != before:
            self.orders = self.plan
            self.changed()
        if self.plan.break_circuits:
            self._dispatcher.break_circuits(now)
        if self.plan.replace:
            self._dispatcher.replace()

    def describe(self) -> pb.Governance:
        plan = self.plan
        newest = list(self._governor.events)[: -EVENTS_SHOWN - 1 : -1]
        return pb.Governance(
            level=plan.level.name.lower(),
            scale_factor=plan.scale_factor,
            shed_tiers=[tier.name.lower() for tier in plan.shed],
            events=[_event(event) for event in newest],
            signals={name: value(self.sample) for name, value in SIGNALS.items()},
        )


def record(event: Event) -> dict[str, str]:
    """A step as it is written to Redis."""
    return {
        "at_unix_ns": str(event.at_ns),
        "before": event.before.name.lower(),
        "after": event.after.name.lower(),
        "shed_tiers": ",".join(tier.name.lower() for tier in event.shed),
        "cause": event.cause,
    }


def _event(event: Event) -> pb.GovernanceEvent:
    return pb.GovernanceEvent(
        at_unix_ns=event.at_ns,
        before=event.before.name.lower(),
        after=event.after.name.lower(),
        shed_tiers=[tier.name.lower() for tier in event.shed],
        cause=event.cause,
    )


def _tell(event: Event) -> None:
    say = log.warning if event.above else log.info
    say(
        "governance.step",
        before=event.before.name.lower(),
        after=event.after.name.lower(),
        shed=[tier.name.lower() for tier in event.shed],
        cause=event.cause,
    )
