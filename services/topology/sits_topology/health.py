"""Whether a device may carry work, from what was found out about it.

NVLinks and lost cards for now. Later signs (Xid, ECC, throttling) are further `Sign`s.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from sits_topology.fabric import NvLinks
from sits_topology.model import Device, Health


class Sign(NamedTuple):
    """One reason to trust a device less."""

    health: Health
    reason: str


def lost_card(cause: str) -> Iterable[Sign]:
    """`cause` is NVML's word for a card that is gone; empty for one that is there."""
    if cause:
        yield Sign(Health.BAD, f"NVML says {cause}")


def lost_nvlinks(now: NvLinks, expected: NvLinks) -> Iterable[Sign]:
    if now.seen and now.total < expected.total:
        yield Sign(Health.DEGRADED, f"{now.total} of {expected.total} NVLinks are up")


def judged(device: Device, signs: Iterable[Sign]) -> Device:
    """The device with the worst of the signs; good without any."""
    worst = max(signs, key=lambda sign: sign.health.value, default=None)
    if worst is None:
        return device
    return replace(device, health=worst.health, health_reason=worst.reason)
