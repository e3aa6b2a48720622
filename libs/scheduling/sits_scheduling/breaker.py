"""A circuit breaker for each executor: keeps work away from a broken one, and lets it back."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from sits_scheduling.outcomes import Outcome

NS_PER_S: Final = 1_000_000_000


class State(Enum):
    """Values are those of the metric."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """`faults` in a row open it; after `reset_ns` it lets `probes` requests through at once."""

    faults: int = 5
    reset_ns: int = 5 * NS_PER_S
    probes: int = 1


class Snapshot(NamedTuple):
    """A breaker's state as a value, for metrics and operators. `until_ns`: when an open one
    lets the first probe through."""

    state: State
    faults: int
    probes_out: int
    until_ns: int


class Permit:
    """Leave to send one request. `end` frees what it holds, once, however the request ended."""

    __slots__ = ("_end", "probe")

    def __init__(self, end: Callable[[Outcome, int], None], *, probe: bool) -> None:
        self._end: Callable[[Outcome, int], None] | None = end
        self.probe = probe

    def end(self, outcome: Outcome, now_ns: int) -> None:
        end, self._end = self._end, None
        if end is not None:
            end(outcome, now_ns)


class Breaker:
    """Closed → open after some faults in a row → half-open after a while → closed or open.

    Rules. Only faults count against and only successes for the executor; every other end
    (client error, full queue, cancelled, late) is neutral. Half-open lets `probes` requests
    through and no more. A probe's slot is free again when the probe ends in any way, or
    when it is older than the reset time, so that one lost or hanging probe cannot keep the
    breaker half-open (the fault behind BRK-01). `next_probe_ns` lets the owner send a probe
    of its own, so that recovery does not wait for traffic.

    Source: Nygard, Release It!, 2007. Weakness: faults in a row; an executor that fails
    every other request stays closed and is a case for `outliers`.
    """

    def __init__(
        self,
        policy: BreakerPolicy | None = None,
        changed: Callable[[State], None] = lambda state: None,
    ) -> None:
        """`changed` hears every new state."""
        self._policy, self._changed = policy or BreakerPolicy(), changed
        self._state = State.CLOSED
        self._faults = 0
        self._until_ns = 0
        self._epoch = 0
        self._probes: dict[Permit, int] = {}

    def __repr__(self) -> str:
        probes = f", {len(self._probes)} probes out" if self._probes else ""
        return f"<Breaker {self._state.name.lower()}, {self._faults} faults in a row{probes}>"

    def permit(self, now_ns: int) -> Permit | None:
        """Leave to send a request now, or None."""
        if self._state is State.CLOSED:
            return self._plain()
        if not self.lets_through(now_ns):
            return None
        if self._state is State.OPEN:
            self._enter(State.HALF_OPEN)
        return self._probe(now_ns)

    def lets_through(self, now_ns: int) -> bool:
        """Whether `permit` would give one. Changes nothing but slots of outlived probes."""
        if self._state is State.OPEN:
            return now_ns >= self._until_ns
        if self._state is State.HALF_OPEN:
            self._free_outlived(now_ns)
            return len(self._probes) < self._policy.probes
        return True

    def next_probe_ns(self, now_ns: int) -> int | None:
        """When to send a probe if no request comes by; None while closed."""
        if self._state is State.CLOSED:
            return None
        if self._state is State.OPEN:
            return max(now_ns, self._until_ns)
        if self.lets_through(now_ns):
            return now_ns
        return min(self._probes.values()) + self._policy.reset_ns

    def trip(self, now_ns: int) -> bool:
        """Open it without waiting for more faults. False when it is not closed."""
        if self._state is not State.CLOSED:
            return False
        self._open(now_ns)
        return True

    def snapshot(self) -> Snapshot:
        return Snapshot(self._state, self._faults, len(self._probes), self._until_ns)

    # steps

    def _plain(self) -> Permit:
        epoch = self._epoch

        def end(outcome: Outcome, now_ns: int) -> None:
            # A request sent before the breaker opened says nothing about recovery.
            if epoch == self._epoch:
                self._count(outcome, now_ns)

        return Permit(end, probe=False)

    def _probe(self, now_ns: int) -> Permit:
        epoch = self._epoch

        def end(outcome: Outcome, ended_ns: int) -> None:
            self._probes.pop(permit, None)
            if epoch == self._epoch:
                self._judge(outcome, ended_ns)

        permit = Permit(end, probe=True)
        self._probes[permit] = now_ns
        return permit

    def _count(self, outcome: Outcome, now_ns: int) -> None:
        if outcome is Outcome.SUCCESS:
            self._faults = 0
        elif outcome is Outcome.FAULT:
            self._faults += 1
            if self._faults >= self._policy.faults:
                self._open(now_ns)

    def _judge(self, outcome: Outcome, now_ns: int) -> None:
        """A probe ended."""
        if outcome is Outcome.SUCCESS:
            self._faults = 0
            self._enter(State.CLOSED)
        elif outcome is Outcome.FAULT:
            self._faults += 1
            self._open(now_ns)

    def _open(self, now_ns: int) -> None:
        self._enter(State.OPEN)
        self._until_ns = now_ns + self._policy.reset_ns

    def _enter(self, state: State) -> None:
        self._state = state
        self._epoch += 1
        self._probes.clear()
        self._changed(state)

    def _free_outlived(self, now_ns: int) -> None:
        limit = now_ns - self._policy.reset_ns
        for permit, sent_ns in list(self._probes.items()):
            if sent_ns <= limit:
                del self._probes[permit]


class Breakers:
    """One breaker an executor. Only those that are not closed cost anything to ask about."""

    def __init__(self, policy: BreakerPolicy | None = None) -> None:
        self._policy = policy or BreakerPolicy()
        self._all: dict[str, Breaker] = {}
        self._tripped: dict[str, Breaker] = {}

    def __repr__(self) -> str:
        return f"<Breakers {len(self._all)}, not closed: {list(self._tripped) or 'none'}>"

    def permit(self, executor: str, now_ns: int) -> Permit | None:
        breaker = self._all.get(executor)
        if breaker is None:
            breaker = Breaker(self._policy, lambda state: self._note(executor, state))
            self._all[executor] = breaker
        return breaker.permit(now_ns)

    def blocked(self, now_ns: int) -> list[str]:
        """Executors that get nothing now: `excluded` of a placement."""
        return [e for e, breaker in self._tripped.items() if not breaker.lets_through(now_ns)]

    def tripped(self) -> Collection[str]:
        """Executors whose breaker is not closed: `excluded` for an owner that sends the probes
        itself, of what is `due`."""
        return self._tripped.keys()

    def due(self, now_ns: int) -> list[str]:
        """Executors that want a probe now."""
        times = ((e, breaker.next_probe_ns(now_ns)) for e, breaker in self._tripped.items())
        return [executor for executor, at in times if at is not None and at <= now_ns]

    def trip(self, executor: str, now_ns: int) -> bool:
        """Keep work away from it from now on, until a probe succeeds."""
        breaker = self._all.get(executor)
        return breaker is not None and breaker.trip(now_ns)

    def snapshots(self) -> dict[str, Snapshot]:
        return {executor: breaker.snapshot() for executor, breaker in self._all.items()}

    def forget(self, executor: str) -> None:
        """It left."""
        self._all.pop(executor, None)
        self._tripped.pop(executor, None)

    def _note(self, executor: str, state: State) -> None:
        if state is State.CLOSED:
            self._tripped.pop(executor, None)
        elif executor in self._all:
            self._tripped[executor] = self._all[executor]
