"""A piece of waiting work, a request or a micro-batch, as queues see it."""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

URGENT_PRIORITY = 1
DEFAULT_PRIORITY = 2
"""Priority 0 on the wire means this one: 1 is above it, 3 and more are below."""


@dataclass(slots=True, eq=False)
class Entry(Generic[T]):
    """`deadline_ns` 0 = none. `cost` is what fairness charges, in one unit a queue: rows, or
    the predicted nanoseconds; 0 = the rows. `level` counts the levels below the most urgent
    priority. `ticket` belongs to the queue that holds it,
    `judged_wait_ns`, the wait predicted on admission, to the `Gate`."""

    item: T
    rows: int
    payload_bytes: int
    arrived_ns: int
    deadline_ns: int = 0
    priority: int = DEFAULT_PRIORITY
    tenant: str = ""
    cost: float = 0.0
    ticket: int = 0
    judged_wait_ns: float = 0.0
    level: int = field(init=False)

    def __post_init__(self) -> None:
        self.cost = self.cost or float(self.rows)
        self.level = max(0, self.priority - URGENT_PRIORITY)

    @property
    def queued(self) -> bool:
        return self.ticket != 0
