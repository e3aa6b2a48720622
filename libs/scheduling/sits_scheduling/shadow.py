"""What another strategy would have done with the same candidates, without doing it."""

from typing import NamedTuple

from sits_scheduling.candidates import Candidates, Floats
from sits_scheduling.placements import Decision, Service, Transfer, Wait
from sits_scheduling.strategies import Strategy

_COST = (Transfer(), Wait(), Service())


class ShadowReport(NamedTuple):
    """`gain_us`: predicted microseconds a decision that the shadow would have saved, on
    average over all; negative = it would have cost more."""

    strategy: str
    decisions: int
    agreed: int
    gain_us: float

    @property
    def agreement(self) -> float:
        return self.agreed / self.decisions if self.decisions else 1.0


class Shadow:
    """Runs a strategy of its own beside the one in force, on every live decision.

    Both choices are judged by the same prediction: transfer + wait + run time. It sees the
    view the real one saw and reserves nothing. Only placement is compared, not the order
    of what waits.

    Weakness: counterfactual for one step only. The load it sees is what the strategy in
    force made; a strategy that would keep the mesh in a better state shows less than it
    would gain, a greedy one more.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._decisions = self._agreed = 0
        self._gain_us = 0.0

    def observe(self, decision: Decision) -> None:
        """Call before the load is reserved: the candidates' arrays are the table's own."""
        other = self._strategy.place(decision.candidates)
        if other is None:
            return
        self._decisions += 1
        self._agreed += other.choice == decision.choice
        if other.at != decision.at:
            cost = predicted_us(decision.candidates)
            self._gain_us += float(cost[decision.at] - cost[other.at])

    def report(self) -> ShadowReport:
        mean = self._gain_us / self._decisions if self._decisions else 0.0
        return ShadowReport(self._strategy.name, self._decisions, self._agreed, mean)

    def __repr__(self) -> str:
        report = self.report()
        return f"<Shadow {report.strategy} agrees {report.agreement:.0%}, {report.gain_us:+.1f} µs>"


def predicted_us(candidates: Candidates) -> Floats:
    """Microseconds until the batch would be done on each candidate."""
    transfer, wait, service = (scorer.score(candidates) for scorer in _COST)
    return -(transfer + wait + service)
