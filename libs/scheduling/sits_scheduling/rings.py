"""The group of devices whose best ring has the widest bottleneck."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from sits_scheduling.columns import Floats

EXACT_UP_TO: Final = 16

Neighbours = list[list[int]]


class Group(NamedTuple):
    """Devices in ring order, and the bandwidth of the ring's weakest link."""

    members: tuple[int, ...]
    gbps: float


def best_group(gbps: Floats, free: Sequence[int], size: int) -> Group | None:
    """`size` of the `free` devices with the widest ring; None when fewer are free.

    `gbps` is symmetric, [devices, devices], with a zero diagonal.

    Exact for up to 16 free devices: a ring wider than t exists if the links of at least t
    hold a cycle of that length, so that t is found by bisection over the bandwidths that
    occur, each step a depth-first search that leaves out devices with fewer than two links
    and stops when too few are in reach. Beyond 16 it is greedy: the best of the groups
    grown from each device by its nearest neighbours, which is exact on uniform machines
    (an NVL72 is one) and a good guess else.

    Among equally wide groups it takes one whose members have the least to offer to others,
    so that a bridge pair is not broken while another device would do as well.
    """
    if size < 1 or len(free) < size:
        return None
    if size == 1:
        return Group((_loneliest(gbps, free),), float("inf"))
    if len(free) > EXACT_UP_TO:
        return _greedy(gbps, free, size)
    return _exact(gbps, free, size)


def ring_gbps(gbps: Floats, members: Sequence[int]) -> float:
    """The weakest link of the best ring through all of up to 16 members."""
    found = best_group(gbps, list(members), len(members))
    return found.gbps if found is not None else 0.0


def _exact(gbps: Floats, free: Sequence[int], size: int) -> Group | None:
    inner = gbps[np.ix_(free, free)]
    widths = np.unique(inner[np.triu_indices(len(free), 1)])
    low, high = 0, len(widths) - 1
    best = _ring(inner, float(widths[0]), size)
    while best is not None and low < high:
        middle = (low + high + 1) // 2
        found = _ring(inner, float(widths[middle]), size)
        if found is None:
            high = middle - 1
        else:
            low, best = middle, found
    if best is None:
        return None
    return Group(tuple(free[i] for i in best), float(widths[low]))


def _ring(inner: Floats, width: float, size: int) -> list[int] | None:
    """A cycle of `size` devices over links of at least `width`; for two, one link."""
    near = _wide_links(inner, width, least=1 if size == 2 else 2)
    # Devices with little to offer first: what is left is worth more to others.
    starts = sorted((i for i, links in enumerate(near) if links), key=lambda i: inner[i].sum())
    banned: set[int] = set()
    for start in starts:
        path = _extend([start], near, size, banned)
        if path is not None:
            return path
        banned.add(start)  # no ring holds it
    return None


def _extend(path: list[int], near: Neighbours, size: int, banned: set[int]) -> list[int] | None:
    if len(path) == size:
        return path if size == 2 or path[0] in near[path[-1]] else None
    if _reach(path, near, banned) < size:
        return None
    for step in near[path[-1]]:
        if step not in path and step not in banned:
            found = _extend([*path, step], near, size, banned)
            if found is not None:
                return found
    return None


def _reach(path: list[int], near: Neighbours, banned: set[int]) -> int:
    """How long the path could get at most: itself and all that its end still leads to."""
    seen, front = {*path, *banned}, [path[-1]]
    count = len(path)
    while front:
        for step in near[front.pop()]:
            if step not in seen:
                seen.add(step)
                front.append(step)
                count += 1
    return count


def _wide_links(inner: Floats, width: float, least: int) -> Neighbours:
    """Links of at least `width`, widest first, of devices that have `least` of them or more."""
    wide = inner >= max(width, 1e-9)
    while True:
        lonely = (wide.sum(axis=1) < least) & wide.any(axis=1)
        if not lonely.any():
            break
        wide[lonely] = wide[:, lonely] = False
    order = np.lexsort((inner.sum(axis=1)[None, :].repeat(len(inner), 0), -inner))
    return [[int(j) for j in row if wide[i, j]] for i, row in enumerate(order)]


def _greedy(gbps: Floats, free: Sequence[int], size: int) -> Group:
    groups = [_grown(gbps, free, first, size) for first in free]
    return max(groups, key=lambda group: group.gbps)


def _grown(gbps: Floats, free: Sequence[int], first: int, size: int) -> Group:
    members = [first]
    rest = [device for device in free if device != first]
    while len(members) < size:
        nearest = max(rest, key=lambda device: float(gbps[device, members].min()))
        members.append(nearest)
        rest.remove(nearest)
    return _exact(gbps, members, size) or Group(tuple(members), 0.0)


def _loneliest(gbps: Floats, free: Sequence[int]) -> int:
    """The device that would be missed least: the weakest links to the other free ones."""
    inner = gbps[np.ix_(free, free)]
    return free[int(inner.sum(axis=1).argmin())]
