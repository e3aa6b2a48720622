"""Whether a device may carry work, from what was found out about it. Pure: time is an argument.

A sign makes a device DEGRADED (its links cost twice as much) or BAD (it gets no weights, and
dispatchers place nothing on it while others can). What happens at one instant counts for a
while after it, and what comes and goes must last before it counts and be gone for longer before
it does not: `RULES` of the README. The worst sign wins.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from sits_topology.fabric import NvLinks
from sits_topology.model import Device, Health

FATAL_XIDS: Final = frozenset({48, 62, 64, 79, 95, 119, 120, 140})
"""Uncorrectable memory, halted microcontrollers, remapping that failed, a card off the bus, errors
that are not contained, a system processor that does not answer: NVIDIA says to reset the card."""
HURT_XIDS: Final = frozenset({63, 74, 92, 94, 121})
"""Rows to be remapped, NVLink, many single-bit errors, contained errors, C2C: it works on."""
# All others, such as 13, 31 and 43, are what a program did, and say nothing of the card.

FATAL_S: Final = 1800.0
HURT_S: Final = 300.0
THROTTLED_READS: Final = 2
FREE_READS: Final = 6


class Sign(NamedTuple):
    """One reason to trust a device less."""

    health: Health
    reason: str


class Condition(NamedTuple):
    """What NVML says of a card now; None = it does not tell."""

    slowed_by: tuple[str, ...] = ()
    uncorrected: int | None = None
    """Memory errors that could not be corrected since the driver was loaded."""
    remap_pending: bool = False
    remap_failed: bool = False


def lost_card(cause: str) -> Iterable[Sign]:
    """`cause` is NVML's word for a card that is gone; empty for one that is there."""
    if cause:
        yield Sign(Health.BAD, f"NVML says {cause}")


def lost_nvlinks(now: NvLinks, expected: NvLinks) -> Iterable[Sign]:
    if now.seen and now.total < expected.total:
        yield Sign(Health.DEGRADED, f"{now.total} of {expected.total} NVLinks are up")


def memory_rows(condition: Condition) -> Iterable[Sign]:
    """State of the row remapper: a reset mends what is pending, nothing mends a failure."""
    if condition.remap_failed:
        yield Sign(Health.BAD, "remapping of memory rows failed")
    elif condition.remap_pending:
        yield Sign(Health.DEGRADED, "memory rows wait to be remapped by a reset")


def judged(device: Device, signs: Iterable[Sign]) -> Device:
    """The device with the worst of the signs; good without any."""
    worst = max(signs, key=lambda sign: sign.health.value, default=None)
    if worst is None:
        return device
    return replace(device, health=worst.health, health_reason=worst.reason)


@dataclass(slots=True)
class _Past:
    """Of one card. `until_s` by sign: an event counts until then."""

    until_s: dict[Sign, float] = field(default_factory=dict)
    uncorrected: int | None = None
    slowed: int = 0
    free: int = 0
    throttled: bool = False


class HealthMemory:
    """What happened to each card, for as long as it counts. One call of `signs` for each card and
    read; times in seconds of any clock that does not jump.

    Weakness: it starts anew with the process, so that what happened before is known only by what
    NVML still counts (lost cards, rows, links).
    """

    def __init__(self) -> None:
        self._past: dict[str, _Past] = {}

    def signs(
        self, card: str, condition: Condition, xids: Collection[int], now_s: float
    ) -> Iterator[Sign]:
        past = self._past.setdefault(card, _Past())
        for xid in xids:
            _note_xid(past, xid, now_s)
        _note_memory_errors(past, condition.uncorrected, now_s)
        past.until_s = {sign: until for sign, until in past.until_s.items() if until > now_s}
        yield from past.until_s
        yield from memory_rows(condition)
        if _is_throttled(past, bool(condition.slowed_by)):
            yield Sign(
                Health.DEGRADED, f"throttled: {', '.join(condition.slowed_by) or 'just now'}"
            )

    def __repr__(self) -> str:
        return f"<HealthMemory {len(self._past)} cards>"


def _note_xid(past: _Past, xid: int, now_s: float) -> None:
    if xid in FATAL_XIDS:
        past.until_s[Sign(Health.BAD, f"Xid {xid}")] = now_s + FATAL_S
    elif xid in HURT_XIDS:
        past.until_s[Sign(Health.DEGRADED, f"Xid {xid}")] = now_s + HURT_S


def _note_memory_errors(past: _Past, count: int | None, now_s: float) -> None:
    """A first look says nothing: errors of last month are no reason. Less than before means that
    the driver was loaded anew."""
    if count is None:
        return
    if past.uncorrected is not None and count > past.uncorrected:
        past.until_s[Sign(Health.BAD, "uncorrectable memory errors")] = now_s + FATAL_S
    past.uncorrected = count


def _is_throttled(past: _Past, slowed: bool) -> bool:
    past.slowed, past.free = (past.slowed + 1, 0) if slowed else (0, past.free + 1)
    if past.slowed >= THROTTLED_READS:
        past.throttled = True
    elif past.free >= FREE_READS:
        past.throttled = False
    return past.throttled
