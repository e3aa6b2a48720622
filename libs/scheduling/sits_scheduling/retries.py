"""When work is tried again, or a second time at once, and how much of that is allowed."""

from typing import Final

from sits_scheduling.outcomes import Outcome

NS_PER_S: Final = 1_000_000_000
AGAIN: Final = frozenset({Outcome.FAULT, Outcome.BACK_PRESSURE})
"""Inference has no side effects, so that both are safe elsewhere."""


class Budget:
    """Extra attempts in proportion to requests: each request pays in `ratio` of an attempt,
    each retry or hedge costs one. `per_s` comes on top, so that a quiet mesh may retry too.

    Source: Finagle's RetryBudget. It bounds the load that retries add when everything
    fails, which is when they help least. Weakness: one budget for all executors; a single
    broken one may use it up (the breaker opens first).
    """

    def __init__(self, ratio: float = 0.1, per_s: float = 1.0, most: float = 100.0) -> None:
        self._ratio, self._per_s, self._most = ratio, per_s, most
        self._saved = min(most, per_s)
        self._filled_ns = 0

    def __repr__(self) -> str:
        return f"<Budget {self._saved:.1f} attempts>"

    def request(self) -> None:
        """A first attempt was made."""
        self._saved = min(self._most, self._saved + self._ratio)

    def spend(self, now_ns: int) -> bool:
        """Take one extra attempt. False = not affordable."""
        elapsed_s = max(0, now_ns - self._filled_ns) / NS_PER_S if self._filled_ns else 0.0
        self._filled_ns = max(self._filled_ns, now_ns)
        self._saved = min(self._most, self._saved + elapsed_s * self._per_s)
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True


class Retries:
    """May a failed attempt be made again on another executor?

    Rule: after faults and full queues only, `most` times, while `service_ns` still fits
    before the deadline, and as the budget allows. Weakness: what waits at the other executor
    is not in `service_ns`.
    """

    def __init__(self, budget: Budget, most: int = 2) -> None:
        self._budget, self._most = budget, most

    def allow(
        self, outcome: Outcome, attempts: int, now_ns: int, deadline_ns: int, service_ns: float
    ) -> bool:
        """`attempts` were made so far, the failed one included; `deadline_ns` 0 = none."""
        if outcome not in AGAIN or attempts > self._most:
            return False
        if deadline_ns and now_ns + service_ns > deadline_ns:
            return False
        return self._budget.spend(now_ns)


class Hedging:
    """A second attempt elsewhere when the first takes longer than almost all do.

    Source: Dean and Barroso, The Tail at Scale, 2013: after the 95th percentile, for at most
    a few percent of requests; whichever answers first wins, the other is cancelled. Here
    only to an executor that is idle, so that a hedge takes nobody's place. Weakness: helps
    against slow executors, not against slow inputs, which are slow everywhere.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    def due_ns(self, sent_ns: int, wait_ns: float, service_ns: float) -> int:
        """When to look: predicted wait + run time at the quantile chosen (0.95)."""
        return int(sent_ns + wait_ns + service_ns)

    def allow(self, now_ns: int, deadline_ns: int, service_ns: float, idle_elsewhere: int) -> bool:
        if idle_elsewhere <= 0 or (deadline_ns and now_ns + service_ns > deadline_ns):
            return False
        return self._budget.spend(now_ns)
