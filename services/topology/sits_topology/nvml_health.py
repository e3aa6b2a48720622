"""What NVML tells of a card's health: its state now, and the events since the last look."""

from collections.abc import Sequence

import pynvml
import structlog

from sits_topology.health import Condition
from sits_topology.nvml_api import (
    EVENT_DOUBLE_BIT,
    EVENT_XID,
    SLOWED_BY,
    UNCORRECTED,
    VOLATILE,
    Event,
    Handle,
    Nvml,
)
from sits_topology.questions import Questions

log = structlog.get_logger()

DOUBLE_BIT_XID = 48
"""What the driver reports of the same error as an Xid."""
MOST_EVENTS = 256
"""In one look: a card that fails in a loop must not hold up the others."""


def condition_of(api: Nvml, handle: Handle, questions: Questions) -> Condition:
    """Consumer cards have neither ECC nor rows to remap: that is no missing fact."""
    reasons = questions.ask(
        "clock_reasons", lambda: _clock_reasons(api, handle), may_not_exist=True
    )
    uncorrected = questions.ask(
        "ecc_errors",
        lambda: api.nvmlDeviceGetTotalEccErrors(handle, UNCORRECTED, VOLATILE),
        may_not_exist=True,
    )
    rows: Sequence[int] | None = questions.ask(
        "remapped_rows", lambda: api.nvmlDeviceGetRemappedRows(handle), may_not_exist=True
    )
    pending, failed = (bool(rows[2]), bool(rows[3])) if rows else (False, False)
    slowed_by = tuple(text for bit, text in SLOWED_BY.items() if (reasons or 0) & bit)
    return Condition(slowed_by, uncorrected, pending, failed)


def _clock_reasons(api: Nvml, handle: Handle) -> int:
    """Older drivers know the call by its older name only."""
    try:
        return api.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except pynvml.NVMLError_FunctionNotFound:
        return api.nvmlDeviceGetCurrentClocksThrottleReasons(handle)


class XidWatch:
    """Xids by card since the last look. Cards that cannot be watched (vGPU, MIG on some drivers)
    are left out, once said; one that comes later is watched from then on."""

    def __init__(self, api: Nvml) -> None:
        self._api = api
        self._events: object | None = None
        self._watched: dict[str, Handle] = {}
        self._refused: set[str] = set()

    def watch(self, card: str, handle: Handle) -> None:
        if card in self._watched or card in self._refused:
            return
        try:
            if self._events is None:
                self._events = self._api.nvmlEventSetCreate()
            self._api.nvmlDeviceRegisterEvents(handle, EVENT_XID | EVENT_DOUBLE_BIT, self._events)
        except pynvml.NVMLError as error:
            self._refused.add(card)
            log.info("topology.no_xids", device=card, cause=str(error))
        else:
            self._watched[card] = handle

    def look(self) -> dict[str, list[int]]:
        """Never waits."""
        found: dict[str, list[int]] = {}
        for _ in range(MOST_EVENTS if self._events is not None else 0):
            try:
                event = self._api.nvmlEventSetWait_v2(self._events, 0)
            except pynvml.NVMLError:  # a timeout: there are no more
                break
            for card, handle in self._watched.items():
                if self._same(handle, event.device):
                    found.setdefault(card, []).append(_xid(event))
        return found

    def close(self) -> None:
        """Before NVML is opened anew, which forgets its sets."""
        self._events = None
        self._watched.clear()
        self._refused.clear()

    def _same(self, one: Handle, other: Handle) -> bool:
        """Handles are pointers, which Python does not compare: the cards' places do."""
        try:
            return self._bus(one) == self._bus(other)
        except pynvml.NVMLError:
            return False

    def _bus(self, handle: Handle) -> bytes | str:
        return self._api.nvmlDeviceGetPciInfo(handle).busId


def _xid(event: Event) -> int:
    return DOUBLE_BIT_XID if event.eventType == EVENT_DOUBLE_BIT else int(event.eventData)
