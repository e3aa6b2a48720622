"""What the end of a request says about the executor that had it."""

from enum import Enum
from typing import Final


class Outcome(Enum):
    """FAULT is the only one that speaks against an executor, SUCCESS the only one for it."""

    SUCCESS = 1
    CLIENT_ERROR = 2
    BACK_PRESSURE = 3
    CANCELLED = 4
    LATE = 5
    FAULT = 6


_BY_CODE: Final = {
    0: Outcome.SUCCESS,
    1: Outcome.CANCELLED,
    4: Outcome.LATE,
    8: Outcome.BACK_PRESSURE,
    2: Outcome.FAULT,  # UNKNOWN
    10: Outcome.FAULT,  # ABORTED
    13: Outcome.FAULT,  # INTERNAL
    14: Outcome.FAULT,  # UNAVAILABLE: transport
    15: Outcome.FAULT,  # DATA_LOSS
}
_BACK_PRESSURE: Final = frozenset(
    {
        "QUEUE_FULL",
        "TENANT_MEMORY_FULL",
        "DRAINING",
        "SHUTTING_DOWN",
        "NO_EXECUTOR",
        "MODEL_NOT_READY",
        "STALE_PAYLOAD",
    }
)
"""Reasons of UNAVAILABLE that tell of load or of an orderly end, not of a broken executor."""

RUN_LOST: Final = (13, "DEVICE_LOST")
"""INTERNAL: under way when a device failed for good. It may be the cause, and would take one
executor after the other with it."""


def classify(code: int, reason: str = "") -> Outcome:
    """From a gRPC status code and our machine-readable reason.

    Client errors are neutral, a full queue is back-pressure, and a deadline that passed
    says as much about the deadline as about the executor; only transport and server
    errors are faults (D7). An executor that hangs shows up in `outliers`, by its times.
    """
    if reason in _BACK_PRESSURE:
        return Outcome.BACK_PRESSURE
    if (code, reason) == RUN_LOST:
        return Outcome.CLIENT_ERROR
    return _BY_CODE.get(code, Outcome.CLIENT_ERROR)
