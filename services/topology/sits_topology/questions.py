"""Asking NVML: what it will not tell about a device is noted, not invented."""

from collections.abc import Callable
from typing import TypeVar

import pynvml
import structlog

T = TypeVar("T")

log = structlog.get_logger()

GONE = (
    pynvml.NVMLError_Uninitialized,
    pynvml.NVMLError_LibraryNotFound,
    pynvml.NVMLError_DriverNotLoaded,
    pynvml.NVMLError_LibRmVersionMismatch,
)
"""Not one fact but the whole driver is away: these are not noted, they rise."""

NOT_THERE = (
    pynvml.NVMLError_NotSupported,
    pynvml.NVMLError_InvalidArgument,
    pynvml.NVMLError_NotFound,
)
"""How NVML says that a link or slice of this number does not exist."""

BY_DESIGN = ""
"""Cause of a fact that devices of this kind never have: missing, but nothing to log."""

LOST = ("GpuIsLost", "ResetRequired")


class Questions:
    """The facts about one device that were asked for and not told, with their causes."""

    def __init__(self) -> None:
        self.causes: dict[str, str] = {}

    def ask(
        self, fact: str, question: Callable[[], T | None], *, may_not_exist: bool = False
    ) -> T | None:
        """The answer; None when there is none, and `fact` is noted.

        With `may_not_exist`, that there is no such thing is an answer too: not noted.
        """
        try:
            answer = question()
        except GONE:
            raise
        except pynvml.NVMLError as error:
            if not (may_not_exist and isinstance(error, NOT_THERE)):
                self.note(fact, _cause(error))
            return None
        if answer is None:
            self.note(fact, "None")
        return answer

    def number(self, fact: str, question: Callable[[], int | None], at_most: int) -> int | None:
        """As `ask`, for a number from 0 to `at_most`; anything else is no answer."""
        answer = self.ask(fact, question)
        if answer is not None and not 0 <= answer <= at_most:
            self.note(fact, "implausible")
            return None
        return answer

    def note(self, fact: str, cause: str = BY_DESIGN) -> None:
        self.causes.setdefault(fact, cause)

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(self.causes)

    @property
    def lost(self) -> str:
        """Why the device can no longer be used; empty when it can."""
        return next((cause for cause in self.causes.values() if cause in LOST), "")


class MissingLog:
    """One line for each device and cause, however often it comes."""

    def __init__(self) -> None:
        self._said: set[tuple[str, str]] = set()

    def tell(self, device: str, causes: dict[str, str]) -> None:
        for cause in sorted(set(causes.values()) - {BY_DESIGN}):
            if (device, cause) not in self._said:
                self._said.add((device, cause))
                facts = [fact for fact, why in causes.items() if why == cause]
                log.info("topology.facts_missing", device=device, cause=cause, facts=facts)


def _cause(error: Exception) -> str:
    return type(error).__name__.removeprefix("NVMLError_")
