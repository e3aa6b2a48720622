"""Devices that die and come back, and devices that are slow for a while."""

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from sits_sim.clock import Clock, Process

DEAD: Final = 0.0


@dataclass(frozen=True, slots=True)
class Fault:
    """`slowness`: run times are so many times longer; `DEAD` = the process is gone."""

    device: int
    at_ns: int
    for_ns: int
    slowness: float


class Suffering(Protocol):
    """Who has the devices."""

    def kill(self, device: int) -> None: ...
    def revive(self, device: int) -> None: ...
    def slow(self, device: int, slowness: float) -> None: ...


def happen(clock: Clock, fault: Fault, to: Suffering) -> Process:
    """The life of one fault."""
    yield clock.wait(fault.at_ns)
    if fault.slowness == DEAD:
        to.kill(fault.device)
        yield clock.wait(fault.for_ns)
        to.revive(fault.device)
    else:
        to.slow(fault.device, fault.slowness)
        yield clock.wait(fault.for_ns)
        to.slow(fault.device, 1.0)


def some(
    devices: int, duration_ns: int, rng: np.random.Generator, *,
    dying: float = 0.01, slow: float = 0.02, slowness: float = 3.0,
) -> tuple[Fault, ...]:  # fmt: skip
    """Parts of all devices that die or are slow, each once, for a tenth of the time."""
    dead, late = max(1, round(dying * devices)), max(1, round(slow * devices))
    hit = rng.permutation(devices)[: dead + late].tolist()
    starts = rng.uniform(0.2, 0.8, len(hit)) * duration_ns
    return tuple(
        Fault(device, int(at), duration_ns // 10, DEAD if number < dead else slowness)
        for number, (device, at) in enumerate(zip(hit, starts, strict=True))
    )
