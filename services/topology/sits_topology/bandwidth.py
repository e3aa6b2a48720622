"""Nominal bandwidths in GB/s, as NCCL reckons them (src/graph/topo.h)."""

import re
from typing import Final

_LANE_SPEED: Final = {"2.5": 15, "5": 30, "8": 60, "16": 120, "32": 240, "64": 480}
"""Speed of one PCIe lane by GT/s; GB/s = width x speed / 80."""

_GENERATIONS: Final = ("2.5", "5", "8", "16", "32", "64")
_DEFAULT_SPEED: Final = "8"
_DEFAULT_WIDTH: Final = 16
_GT = re.compile(r"(\d+(?:\.\d+)?) ?GT/s")

_PER_NVLINK: Final = ((100, 40.1), (90, 20.6), (86, 12.0), (80, 20.0), (70, 20.0), (60, 18.0))
PER_NVLINK_GBPS: Final = 20.0
"""Where the architecture is not known: V100 and A100."""

SOCKET_GBPS: Final = 16.0
"""Between two CPU sockets; NCCL's table goes from 6 to 40 by vendor and model, AMD is 16."""


def pcie_gbps(speed: str, width: int) -> float:
    """From texts such as `16.0 GT/s PCIe`. NCCL's rules for what is missing: an empty or
    unknown speed is 8 GT/s, width 0 is 16 (topo.cc)."""
    match = _GT.search(speed)
    number = match[1].removesuffix(".0") if match else _DEFAULT_SPEED
    lane = _LANE_SPEED.get(number, _LANE_SPEED[_DEFAULT_SPEED])
    return (width or _DEFAULT_WIDTH) * lane / 80


def pcie_generation_gbps(generation: int, width: int) -> float | None:
    """From NVML's generation number; None for one that does not exist yet."""
    if not 1 <= generation <= len(_GENERATIONS) or width < 1:
        return None
    return width * _LANE_SPEED[_GENERATIONS[generation - 1]] / 80


def per_nvlink_gbps(compute_capability: tuple[int, int] | None) -> float:
    """One NVLink in one direction."""
    if compute_capability is None:
        return PER_NVLINK_GBPS
    architecture = compute_capability[0] * 10 + compute_capability[1]
    return next((gbps for least, gbps in _PER_NVLINK if architecture >= least), PER_NVLINK_GBPS)
