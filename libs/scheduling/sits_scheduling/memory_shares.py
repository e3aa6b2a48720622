"""A budget of memory divided among classes of tenants: none of them takes another's part (E9)."""

import math
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from sits_scheduling.tenants import Tier

STANDARD: Final = "gold=50,silver=30,bronze=20"
_PART: Final = re.compile(r"(gold|silver|bronze)=(\d+(?:\.\d+)?)")


class SharesError(ValueError):
    """Says what was expected and what came."""


class Refused(NamedTuple):
    """`never`: it is larger than the whole share."""

    tier: Tier
    asked_bytes: int
    held_bytes: int
    share_bytes: int

    @property
    def never(self) -> bool:
        return self.asked_bytes > self.share_bytes


def parse_shares(text: str) -> dict[Tier, float]:
    """`gold=50,silver=30,bronze=20`, in percent, as parts of 1. Each once, together at most 100."""
    shares: dict[Tier, float] = {}
    for part in text.split(","):
        found = _PART.fullmatch(part.strip())
        if found is None or Tier[found[1].upper()] in shares:
            raise SharesError(
                f"expected gold, silver and bronze once each, as {STANDARD}: '{part}'"
            )
        shares[Tier[found[1].upper()]] = float(found[2]) / 100
    missing = [tier.name.lower() for tier in Tier if not shares.get(tier)]
    if missing:
        raise SharesError(f"expected a share above 0 for each class, {missing[0]} has none")
    if math.fsum(shares.values()) > 1 + 1e-9:
        raise SharesError(f"expected at most 100 percent together, got {text}")
    return shares


class MemoryShares:
    """Not thread-safe. Known weakness: what one class does not use stays free, so that another
    class's next batch need not wait for it."""

    def __init__(self, budget_bytes: int, shares: Mapping[Tier, float]) -> None:
        self._limits = {tier: int(budget_bytes * shares[tier]) for tier in Tier}
        self._held = dict.fromkeys(Tier, 0)

    def take(self, tier: Tier, size_bytes: int) -> Refused | None:
        """Hold that much, or say why not."""
        held, limit = self._held[tier], self._limits[tier]
        if held + size_bytes > limit:
            return Refused(tier, size_bytes, held, limit)
        self._held[tier] = held + size_bytes
        return None

    def give(self, tier: Tier, size_bytes: int) -> None:
        self._held[tier] -= size_bytes

    def held(self, tier: Tier) -> int:
        return self._held[tier]

    def __repr__(self) -> str:
        parts = (f"{t.name.lower()} {self._held[t]}/{self._limits[t]}" for t in Tier)
        return f"<MemoryShares {', '.join(parts)}>"
