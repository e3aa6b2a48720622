"""How near two devices are: a weight from 0 to 1, made of what moving a megabyte costs.

weight = 1 / (1 + cost / `HALF_COST_S`): 1.0 for the device itself, one half at 40 GB/s, towards 0
with growing cost. The cost of a link is `sits_scheduling.links`. `HALF_COST_S` is a choice, not a
measurement.
"""

from sits_scheduling.affinity import HALF_COST_S


def weight(cost_s: float) -> float:
    """Affinity of a pair whose megabyte costs `cost_s`: 1.0 = same device, towards 0."""
    return 1.0 / (1.0 + cost_s / HALF_COST_S)
