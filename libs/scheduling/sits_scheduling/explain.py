"""Why a request went where it went: the last decisions, kept small and rendered when asked."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sits_scheduling.batching import CloseReason
from sits_scheduling.candidates import ExecutorTable, Ints
from sits_scheduling.placements import Decision

CAPACITY: Final = 10_000
KEPT: Final = 8
"""Candidates kept of a decision: the pick and the best others."""
_TERMS: Final = 4

Names = npt.NDArray[np.object_]


class PathStep(NamedTuple):
    """Which step of which pipeline, from 1; of none: empty and 0."""

    pipeline: str = ""
    step: int = 0


NO_STEP: Final = PathStep()


class Option(NamedTuple):
    """A candidate and what spoke for it; more is better. `room`: it could have been picked."""

    executor: str
    scores: dict[str, float]
    room: bool

    @property
    def total(self) -> float:
        return sum(self.scores.values())


@dataclass(frozen=True, slots=True)
class Explanation:
    """One decision. `options` holds the pick first, then the best others; `considered` and
    `eligible` count all candidates and those with room."""

    request_ids: tuple[str, ...]
    decided_ns: int
    model: str
    strategy: str
    closed_by: CloseReason | None
    considered: int
    eligible: int
    options: tuple[Option, ...]
    path: PathStep = NO_STEP

    @property
    def pick(self) -> Option:
        return self.options[0]

    def compact(self) -> str:
        """For trailing metadata, such as `executor=e3;strategy=topo_aware;of=64;...`."""
        terms = ";".join(f"{name}={value:.4g}" for name, value in self.pick.scores.items())
        closed = f";closed_by={self.closed_by.name.lower()}" if self.closed_by else ""
        chosen = f"executor={self.pick.executor};strategy={self.strategy};of={self.eligible}"
        return f"{chosen};{terms}{closed}" if terms else f"{chosen}{closed}"


class _Head(NamedTuple):
    """What of a record is not an array. The pick is the first of `executors`."""

    request_ids: tuple[str, ...]
    decided_ns: int
    model: str
    strategy: str
    closed_by: CloseReason | None
    considered: int
    eligible: int
    terms: tuple[str, ...]
    executors: Names | tuple[str, ...]
    path: PathStep = NO_STEP


class DecisionLog:
    """A ring of the last decisions, found by request id. The oldest are overwritten.

    Writing copies a few scores into arrays that exist already; names and dictionaries are
    made when somebody asks. Not thread-safe. Weakness: of a large comparison only the best
    `KEPT` are remembered, and of each at most four terms.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._heads: list[_Head | None] = [None] * capacity
        self._scores = np.zeros((capacity, KEPT, _TERMS), dtype=np.float32)
        self._room = np.zeros((capacity, KEPT), dtype=np.bool_)
        self._serves = np.zeros((capacity, KEPT), dtype=np.bool_)
        self._slots: dict[str, int] = {}
        self._next = 0

    @property
    def capacity(self) -> int:
        return len(self._heads)

    def __len__(self) -> int:
        return min(self._next, len(self._heads))

    def __repr__(self) -> str:
        return f"<DecisionLog {len(self)} of {len(self._heads)}>"

    def write(
        self,
        request_ids: Sequence[str],
        model: str,
        strategy: str,
        decision: Decision,
        table: ExecutorTable,
        now_ns: int,
        closed_by: CloseReason | None = None,
        path: PathStep = NO_STEP,
    ) -> None:
        """Keep `decision`. Call before its load is reserved."""
        slot = self._claim(request_ids)
        seen, allowed = decision.candidates, decision.allowed
        top = _best(decision)
        terms = tuple(decision.terms)[:_TERMS]
        for column, name in enumerate(terms):
            self._scores[slot, : len(top), column] = decision.terms[name][top]
        self._room[slot, : len(top)] = allowed[top]
        self._serves[slot, : len(top)] = seen.allowed[top]
        self._heads[slot] = _Head(
            tuple(request_ids), now_ns, model, strategy, closed_by,
            int(np.count_nonzero(seen.allowed)), int(np.count_nonzero(allowed)), terms,
            table.ids(seen.positions[top]), path,
        )  # fmt: skip

    def write_only(
        self,
        request_ids: Sequence[str],
        model: str,
        strategy: str,
        executor: str,
        now_ns: int,
        closed_by: CloseReason | None = None,
        path: PathStep = NO_STEP,
    ) -> None:
        """Keep that there was one executor, with room, and hence nothing to compare."""
        slot = self._claim(request_ids)
        self._room[slot, 0] = self._serves[slot, 0] = True
        self._heads[slot] = _Head(
            tuple(request_ids), now_ns, model, strategy, closed_by, 1, 1, (), (executor,), path,
        )  # fmt: skip

    def _claim(self, request_ids: Sequence[str]) -> int:
        """The place of the oldest record, for a new one about these requests."""
        slot = self._next % len(self._heads)
        self._forget(slot)
        self._next += 1
        for request_id in request_ids:
            self._slots[request_id] = slot
        return slot

    def find(self, request_id: str) -> Explanation | None:
        """The last decision about this request; None when it is not remembered."""
        slot = self._slots.get(request_id)
        return self._render(slot) if slot is not None else None

    def path(self, request_id: str) -> list[Explanation]:
        """The last decision about this request, and of a pipeline those about the steps before
        it, the first one first. Looks at the whole log."""
        slot = self._slots.get(request_id)
        last = self._heads[slot] if slot is not None else None
        if slot is None or last is None:
            return []
        found, wanted = [slot], last.path.step - 1
        for back in range(1, len(self)):
            earlier = (slot - back) % len(self._heads)
            head = self._heads[earlier]
            if wanted < 1 or head is None:
                break
            same = head.path == PathStep(last.path.pipeline, wanted)
            if same and request_id in head.request_ids:
                found.append(earlier)
                wanted -= 1
        rendered = (self._render(one) for one in reversed(found))
        return [explanation for explanation in rendered if explanation is not None]

    def latest(self, count: int) -> list[Explanation]:
        """The newest first."""
        newest = range(self._next - 1, self._next - 1 - min(count, len(self)), -1)
        rendered = (self._render(number % len(self._heads)) for number in newest)
        return [explanation for explanation in rendered if explanation is not None]

    def _render(self, slot: int) -> Explanation | None:
        head = self._heads[slot]
        if head is None:
            return None
        options = [
            self._option(slot, head, rank)
            for rank in range(len(head.executors))
            if self._serves[slot, rank]
        ]
        others = sorted(options[1:], key=lambda option: (not option.room, -option.total))
        return Explanation(
            head.request_ids, head.decided_ns, head.model, head.strategy, head.closed_by,
            head.considered, head.eligible, (options[0], *others), head.path,
        )  # fmt: skip

    def _option(self, slot: int, head: _Head, rank: int) -> Option:
        values = self._scores[slot, rank]
        scores = {name: float(values[column]) for column, name in enumerate(head.terms)}
        return Option(str(head.executors[rank]), scores, bool(self._room[slot, rank]))

    def _forget(self, slot: int) -> None:
        head = self._heads[slot]
        if head is not None:
            for request_id in head.request_ids:
                if self._slots.get(request_id) == slot:
                    del self._slots[request_id]


def _best(decision: Decision) -> Ints:
    """Rows of the pick, first, and of the best others in any order, with room before without."""
    keys = np.where(decision.allowed, -decision.total, 1e12 - decision.total)
    keys[decision.at] = -math.inf
    return keys.argpartition((0, min(KEPT, len(keys)) - 1))[:KEPT]
