"""Which of the waiting work goes first: one number a piece, the least goes first."""

from collections.abc import Callable
from typing import Final, Protocol

MS: Final = 1_000_000


class Waiting(Protocol):
    """What an order looks at; every `Entry` is one."""

    @property
    def arrived_ns(self) -> int: ...
    @property
    def deadline_ns(self) -> int: ...
    @property
    def level(self) -> int: ...


class Order(Protocol):
    """Equal keys go in the order they came. A key never changes while its entry waits, so
    that a queue is a heap, and a switch of the order is one re-sort that loses nothing."""

    @property
    def name(self) -> str: ...

    def key(self, entry: Waiting) -> int:
        """Nanoseconds on the clock of `arrived_ns`."""
        ...


class Fifo:
    """Arrival order, the baseline of every queue.

    Weakness: one slow or patient request holds up all urgent ones behind it.
    """

    name = "fifo"

    def key(self, entry: Waiting) -> int:
        return entry.arrived_ns


class Deadline:
    """Earliest deadline first (Liu and Layland 1973; optimal on one server that can keep up).

    Work without a deadline counts as due `patience_ns` after it came, so that it is not
    starved. Weakness: past saturation it finishes everything a little too late; admission
    (`deadlines`) has to keep the hopeless out.
    """

    name = "deadline"

    def __init__(self, patience_ns: int = 1_000 * MS) -> None:
        self._patience_ns = patience_ns

    def key(self, entry: Waiting) -> int:
        return entry.deadline_ns or entry.arrived_ns + self._patience_ns


class Priority:
    """Most urgent first, with aging: one level is worth `step_ns` of waiting.

    An entry of level p is overtaken only by work that came within p × `step_ns` after it,
    which bounds what strict priority (Triton's `priority_levels`) leaves unbounded.
    Weakness: under light load the step is a guess; it only matters once work waits.
    """

    name = "priority"

    def __init__(self, step_ns: int = 250 * MS) -> None:
        self._step_ns = step_ns

    def key(self, entry: Waiting) -> int:
        return entry.arrived_ns + entry.level * self._step_ns


ORDERS: Final[dict[str, Callable[[], Order]]] = {
    "fifo": Fifo,
    "deadline": Deadline,
    "priority": Priority,
}
"""Every order by name."""
