"""Results as figures: a value, what it is compared with, the bar it must reach, and whether.

The same form as `sits bench`: see `as_dict`.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

Number = float | int

AT_LEAST: Final = ">="
AT_MOST: Final = "<="

_COMPARE: Final[dict[str, Callable[[Number, Number], bool]]] = {
    AT_LEAST: operator.ge,
    AT_MOST: operator.le,
}


@dataclass(frozen=True, slots=True)
class Bar:
    """`of` says what is compared: the ratio of value and reference, or the value itself."""

    relation: str
    limit: Number
    of_ratio: bool = False

    def __str__(self) -> str:
        return f"{self.relation} {self.limit:g}{'×' if self.of_ratio else ''}"


@dataclass(frozen=True, slots=True)
class Figure:
    """`ratio` is how many times better than the reference the value is. None = there is none."""

    figure: str
    value: Number
    unit: str
    reference: Number | None = None
    ratio: float | None = None
    bar: Bar | None = None

    @property
    def holds(self) -> bool | None:
        if self.bar is None:
            return None
        compared = self.ratio if self.bar.of_ratio else self.value
        return compared is not None and _COMPARE[self.bar.relation](compared, self.bar.limit)

    def as_dict(self) -> dict[str, object]:
        return {
            "figure": self.figure,
            "value": rounded(self.value),
            "unit": self.unit,
            "reference": None if self.reference is None else rounded(self.reference),
            "ratio": None if self.ratio in (None, float("inf")) else rounded(self.ratio),
            "bar": None if self.bar is None else str(self.bar),
            "holds": self.holds,
        }


def plain(figure: str, value: Number, unit: str) -> Figure:
    """For information; no bar."""
    return Figure(figure, value, unit)


def at_least(figure: str, value: Number, unit: str, limit: Number) -> Figure:
    return Figure(figure, value, unit, bar=Bar(AT_LEAST, limit))


def at_most(
    figure: str, value: Number, unit: str, limit: Number, reference: Number | None = None
) -> Figure:
    return Figure(figure, value, unit, reference, bar=Bar(AT_MOST, limit))


def lower(figure: str, value: Number, unit: str, reference: Number, times: Number) -> Figure:
    """`value` must be so many times below `reference`."""
    ratio = reference / value if value else float("inf")
    return Figure(figure, value, unit, reference, ratio, Bar(AT_LEAST, times, of_ratio=True))


def higher(figure: str, value: Number, unit: str, reference: Number, times: Number) -> Figure:
    """`value` must be so many times above `reference`."""
    ratio = value / reference if reference else float("inf")
    return Figure(figure, value, unit, reference, ratio, Bar(AT_LEAST, times, of_ratio=True))


def rounded(value: Number) -> Number:
    """Four significant digits: more would be noise."""
    if isinstance(value, int) or value != value or value in (float("inf"), float("-inf")):
        return value
    return float(f"{value:.4g}")


@dataclass(frozen=True, slots=True)
class Series:
    """One curve of a plot."""

    label: str
    x: list[float]
    y: list[float]


@dataclass(frozen=True, slots=True)
class Panel:
    """One set of axes of a plot. `log_y`: a logarithmic y axis."""

    title: str
    x_label: str
    y_label: str
    series: list[Series]
    log_y: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """What a scenario found: its parameters, its figures, and what its plot shows."""

    parameters: dict[str, object]
    figures: list[Figure]
    panels: list[Panel] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return all(figure.holds is not False for figure in self.figures)

    def as_dict(self) -> dict[str, object]:
        return {
            "parameters": self.parameters,
            "figures": [figure.as_dict() for figure in self.figures],
        }
