"""How many NVLinks join two GPUs, and how many should."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations

Pair = frozenset[str]

SMALLEST_FABRIC = 4
"""GPUs; fewer that are all joined may as well be bridges."""


@dataclass(frozen=True, slots=True)
class NvLinks:
    """Active NVLinks of one GPU by where they end."""

    switched: int = 0
    peers: Mapping[str, int] = field(default_factory=dict)
    """By PCI address of the other end."""
    seen: bool = True
    """False = the driver would not tell, which is not 'none'."""

    @property
    def total(self) -> int:
        return self.switched + sum(self.peers.values())

    def at_least(self, other: "NvLinks") -> "NvLinks":
        """The larger count for each end."""
        ends = self.peers.keys() | other.peers.keys()
        peers = {end: max(self.peers.get(end, 0), other.peers.get(end, 0)) for end in ends}
        return NvLinks(max(self.switched, other.switched), peers, self.seen or other.seen)


def lanes(one: NvLinks, one_pci: str, other: NvLinks, other_pci: str) -> int:
    """NVLinks from one GPU to the other.

    Direct ones as both ends count them; through a switch as many as the smaller of the two
    has. Looking for the peer's address alone finds nothing on any box with NVSwitch.
    """
    direct = min(one.peers.get(other_pci, 0), other.peers.get(one_pci, 0))
    return direct or min(one.switched, other.switched)


class BestSeen:
    """What each GPU's NVLinks were at their best, to tell lost links from none.

    A GPU is also measured by its peers: cards of one name on one switch have the same
    number of links, so fewer means that some are down. Bridges have no such rule, one card
    may have a bridge and another none; there only the past tells.
    """

    def __init__(self) -> None:
        self._best: dict[str, NvLinks] = {}

    def expected(self, now: Mapping[str, tuple[str, NvLinks]]) -> dict[str, NvLinks]:
        """From id → (card name, links now) to id → the links it should have."""
        most: dict[str, int] = {}
        for name, links in now.values():
            most[name] = max(most.get(name, 0), links.switched)
        for gpu, (name, links) in now.items():
            best = self._best.get(gpu, NvLinks()).at_least(links)
            self._best[gpu] = best.at_least(NvLinks(switched=most[name]))
        return {gpu: self._best[gpu] for gpu in now}


def degraded_pairs(gpus: Iterable[str], counts: Mapping[Pair, int]) -> set[Pair]:
    """Pairs of a matrix without card names that have fewer NVLinks than their fabric.

    A fabric is `SMALLEST_FABRIC` or more GPUs, more than half of all, every two of them
    joined by as many links as the smaller of the two has. GPUs that have none, or fewer
    than the most, have lost them. Any other pattern (cube mesh, bridges) is by design.
    """
    everyone = list(gpus)
    own = {
        gpu: max((n for pair, n in counts.items() if gpu in pair), default=0) for gpu in everyone
    }
    members = [gpu for gpu in everyone if own[gpu]]
    if len(members) < SMALLEST_FABRIC or 2 * len(members) <= len(everyone):
        return set()
    inside = [frozenset(pair) for pair in combinations(members, 2)]
    if any(counts.get(pair, 0) != min(own[gpu] for gpu in pair) for pair in inside):
        return set()
    most = max(own.values())
    pairs = (frozenset(pair) for pair in combinations(everyone, 2))
    return {pair for pair in pairs if counts.get(pair, 0) < most}
