"""Figures as the issue's table words them: so many times the reference, at least or at most."""

from sits_sim.figures import AT_LEAST, AT_MOST, Bar, Figure


def at_least_times(figure: str, value: float, unit: str, reference: float, limit: float) -> Figure:
    """`value` is at least `limit` times `reference`."""
    return Figure(figure, value, unit, reference, _times(value, reference), _bar(AT_LEAST, limit))


def at_most_times(figure: str, value: float, unit: str, reference: float, limit: float) -> Figure:
    """`value` is at most `limit` times `reference`."""
    return Figure(figure, value, unit, reference, _times(value, reference), _bar(AT_MOST, limit))


def times_lower(figure: str, value: float, unit: str, reference: float, limit: float) -> Figure:
    """`reference` is at least `limit` times `value`."""
    return Figure(figure, value, unit, reference, _times(reference, value), _bar(AT_LEAST, limit))


def compared(figure: str, value: float, unit: str, reference: float) -> Figure:
    """For information; no bar."""
    return Figure(figure, value, unit, reference, _times(value, reference))


def _times(value: float, reference: float) -> float:
    return value / reference if reference else float("inf")


def _bar(relation: str, limit: float) -> Bar:
    return Bar(relation, limit, of_ratio=True)
