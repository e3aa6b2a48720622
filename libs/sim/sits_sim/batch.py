"""A micro-batch on its way through the mesh."""

from dataclasses import dataclass, field
from typing import Final

from sits_scheduling.candidates import Reservation
from sits_scheduling.entry import Entry

MODEL: Final = "model/1"
"""The one model that a simulated mesh serves."""


@dataclass(slots=True, eq=False)
class Batch:
    """`requests` are numbers of the workload, `front` is the front door that sent it.
    `judged` and `expected_ns` are for its gate, which made them.
    """

    requests: list[int]
    rows: int
    payload_bytes: int
    front: int
    closed_ns: int
    reservation: Reservation | None = None
    judged: list[Entry[int]] = field(default_factory=list)
    expected_ns: float = 0.0
    moves: int = 0

    @property
    def instance(self) -> str:
        """Where it ran; empty = nowhere."""
        return self.reservation.executor if self.reservation else ""
