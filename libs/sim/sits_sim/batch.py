"""A micro-batch on its way through the mesh."""

from dataclasses import dataclass
from typing import Final

from sits_scheduling.candidates import Reservation

MODEL: Final = "model/1"
"""The one model that a simulated mesh serves."""


@dataclass(slots=True, eq=False)
class Batch:
    """`requests` are numbers of the workload, `front` is the front door that sent it."""

    requests: list[int]
    rows: int
    payload_bytes: int
    front: int
    closed_ns: int
    reservation: Reservation | None = None
    expected_ns: float = 0.0
    moves: int = 0

    @property
    def instance(self) -> str:
        """Where it ran; empty = nowhere."""
        return self.reservation.executor if self.reservation else ""
