"""How long a batch runs: learnt while serving, for each model, size and instance."""

from typing import Final

BUCKETS: Final = 16
"""Sizes 1, 2, 3–4, 5–8, ... up to 32,768 rows and everything above."""

QUANTILES: Final = (0.5, 0.9, 0.99)

_SMOOTHING: Final = 0.05
"""Weight of a new observation once there are 20: follows a change within a few dozen runs."""
_FORGETTING: Final = 0.995
_STEP: Final = 0.1
"""Of a tail's distance, in mean deviations."""
_SLOWEST, _FASTEST = 20.0, 0.05
"""Bounds of an instance's speed: one absurd stamp must not take it out for ever."""


class LinearFit:
    """Least squares of time over rows with exponential forgetting, a and b never negative.

    Before two sizes were seen, larger sizes are taken as proportional and smaller ones as
    equally long: an estimate on the careful side both ways.
    """

    __slots__ = ("_sx", "_sxx", "_sxy", "_sy", "_weight")

    def __init__(self) -> None:
        self._weight = self._sx = self._sy = self._sxx = self._sxy = 0.0

    def add(self, rows: float, took: float) -> None:
        keep = _FORGETTING
        self._weight = keep * self._weight + 1.0
        self._sx = keep * self._sx + rows
        self._sy = keep * self._sy + took
        self._sxx = keep * self._sxx + rows * rows
        self._sxy = keep * self._sxy + rows * took

    def at(self, rows: float) -> float:
        """0 when nothing was seen."""
        weight = self._weight
        if not weight:
            return 0.0
        spread = weight * self._sxx - self._sx * self._sx
        mean_rows, mean_time = self._sx / weight, self._sy / weight
        if spread <= 1e-6 * weight * self._sxx:
            return mean_time * max(1.0, rows / mean_rows)
        slope = max(0.0, (weight * self._sxy - self._sx * self._sy) / spread)
        start = mean_time - slope * mean_rows
        return mean_time * rows / mean_rows if start < 0 else start + slope * rows


class _Tail:
    """Quantiles of actual over expected time: 1 + how many mean deviations they are away.

    The mean deviation follows within some dozen runs; the distances start as those of a
    normal distribution and each run moves them a step (stochastic approximation, Robbins
    and Monro 1951). Weakness: the distance of the 0.99 needs some hundred runs to follow a
    tail that changed its form.
    """

    __slots__ = ("_count", "_deviation", "_distances")

    def __init__(self) -> None:
        self._count = 0
        self._deviation = 0.1
        self._distances = [0.0, 1.6, 2.9]

    def add(self, ratio: float) -> None:
        self._count += 1
        away = ratio - 1.0
        for index, quantile in enumerate(QUANTILES):
            above = away > self._distances[index] * self._deviation
            self._distances[index] += _STEP * (quantile if above else quantile - 1.0)
        self._deviation = _towards(self._deviation, abs(away), self._count)

    def at(self, quantile: float) -> float:
        """Between the quantiles that are followed on a line, constant outside of them."""
        low, mid, high = self._distances
        if quantile <= QUANTILES[1]:
            part = (quantile - QUANTILES[0]) / (QUANTILES[1] - QUANTILES[0])
            distance = low + max(0.0, part) * max(0.0, mid - low)
        else:
            part = (quantile - QUANTILES[1]) / (QUANTILES[2] - QUANTILES[1])
            distance = mid + min(1.0, part) * max(0.0, high - mid)
        return max(0.0, 1.0 + distance * self._deviation)


class _Model:
    """One model's line over rows, corrected by size bucket and by instance."""

    __slots__ = ("bucket", "counts", "fit", "runs", "speeds", "tail")

    def __init__(self) -> None:
        self.fit = LinearFit()
        self.bucket = [1.0] * BUCKETS
        self.counts = [0] * BUCKETS
        self.speeds: dict[str, tuple[float, int]] = {}
        self.tail = _Tail()
        self.runs = 0

    def expected(self, rows: int) -> float:
        return self.fit.at(rows) * self.bucket[bucket_of(rows)]

    def observe(self, rows: int, instance: str, took: float) -> None:
        """Each factor learns from what the others leave unexplained."""
        speed, seen = self.speeds.get(instance, (1.0, 0))
        line = self.fit.at(rows)
        if line:
            base = line * self.bucket[bucket_of(rows)]
            self.tail.add(took / (base * speed))
            ratio = min(_SLOWEST, max(_FASTEST, took / base))
            self.speeds[instance] = (_towards(speed, ratio, seen + 2), seen + 1)
        self.fit.add(rows, took / speed)
        self._correct_bucket(rows, took / speed)
        self.runs += 1

    def _correct_bucket(self, rows: int, took: float) -> None:
        index = bucket_of(rows)
        self.counts[index] += 1
        ratio = min(_SLOWEST, max(_FASTEST, took / self.fit.at(rows)))
        self.bucket[index] = _towards(self.bucket[index], ratio, self.counts[index])


class ServiceTimes:
    """Predicted run time = line over rows × its size bucket × the instance's speed × tail.

    Rule: a least-squares line for the model (Clockwork, OSDI 2020, predicts by model and
    batch size), corrected by power-of-two bucket where the real curve bends, by instance
    where one is slower than the fleet, and by the quantile asked for. Everything is learnt
    from finished runs; an unseen size or instance falls back to what is known without it.

    Weakness: factors are independent, so an instance that is slow only for large batches
    is seen as somewhat slow for all; the tail is one for all sizes of a model.
    """

    def __init__(self) -> None:
        self._models: dict[str, _Model] = {}

    def __repr__(self) -> str:
        runs = ", ".join(f"{name} {model.runs}" for name, model in self._models.items())
        return f"<ServiceTimes runs: {runs or 'none'}>"

    def observe(self, model: str, rows: int, instance: str, took_ns: float) -> None:
        """A batch of `rows` ran for `took_ns` on `instance`."""
        if took_ns > 0 and rows > 0:
            known = self._models.get(model)
            if known is None:
                known = self._models[model] = _Model()
            known.observe(rows, instance, took_ns)

    def expected_ns(self, model: str, rows: int, instance: str = "") -> float:
        """Mean time; of the fleet without an instance. 0 = nothing known of the model."""
        known = self._models.get(model)
        return known.expected(rows) * self.speed(model, instance) if known else 0.0

    def quantile_ns(
        self, model: str, rows: int, quantile: float = 0.95, instance: str = ""
    ) -> float:
        """Time that this part of all runs stays below. 0 = nothing known of the model."""
        known = self._models.get(model)
        if known is None:
            return 0.0
        return self.expected_ns(model, rows, instance) * known.tail.at(quantile)

    def row_ns(self, model: str, rows: int) -> float:
        """What one row costs in batches of `rows`: the unit of cost of time-fair queues."""
        return self.expected_ns(model, rows) / max(1, rows)

    def speed(self, model: str, instance: str) -> float:
        """Time on this instance over time on the fleet, 1 when unknown."""
        known = self._models.get(model)
        return known.speeds.get(instance, (1.0, 0))[0] if known and instance else 1.0

    def forget(self, instance: str) -> None:
        """It left; a successor starts as unknown."""
        for model in self._models.values():
            model.speeds.pop(instance, None)


def bucket_of(rows: int) -> int:
    """Sizes that are learnt together, see `BUCKETS`."""
    return min(BUCKETS - 1, (max(1, rows) - 1).bit_length())


def _towards(value: float, observed: float, count: int) -> float:
    """Plain mean of the first 20, exponential from then on."""
    return value + max(_SMOOTHING, 1.0 / count) * (observed - value)
