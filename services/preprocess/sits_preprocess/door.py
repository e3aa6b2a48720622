"""Turns away, while requests are being refused, calls that would be: nothing is made of them."""

from collections.abc import Callable
from typing import Final, NamedTuple

from sits_core.clock import Deadline
from sits_core.errors import SitsError
from sits_core.rpc import AUTHORIZATION
from sits_preprocess.access import TENANT_HEADER
from sits_preprocess.accounts import Whose
from sits_preprocess.batcher import QUEUE_FULL
from sits_preprocess.gates import Look, late
from sits_preprocess.inference import PASSED, Inference
from sits_preprocess.oip.reading import OipMessage, beginning
from sits_preprocess.oip.result import Result
from sits_preprocess.request import Request
from sits_preprocess.transport.call import LATER, Arrivals, Metadata, Pairs, text_metadata
from sits_scheduling.gate import Needs
from sits_scheduling.quotas import Reason

FOR_EVER: Final = float("inf")
TAKEN: Final = 64
"""Let in at a time, by all models and tenants together: what comes meanwhile is newer, and waits as
long as it takes to take these in."""
PACE: Final = 0.25
"""Weight of the last turn in how long one takes."""
_WHO: Final = frozenset((AUTHORIZATION, TENANT_HEADER))

Take = Callable[[Arrivals, bool], None]


class Door:
    """Of calls that come together, the first of each model and tenant is asked about; for the
    others its answer is compared with the time that they have left.

    The newest should be asked about first: it has the most time left, so that its refusal holds
    for all, and so that what has waited before the door for long does not keep out what can
    still make it.
    """

    def __init__(self, inference: Inference, take: Take) -> None:
        """`take` gets those that are let in, and whether that was asked for all of them."""
        self._inference, self._take = inference, take
        self._share, self._pace_ns = TAKEN, 0.0
        self._last: Turn | None = None

    def turn(self, now: int) -> "Turn | None":
        """For calls that came at `now`; None while nothing is being refused."""
        inference = self._inference
        if inference.draining or not inference.engine.refusing(now):
            self._last = None
            return None
        if self._last is not None:
            self._learn(self._last, now)
        self._last = Turn(inference, self._take, now, self._share, self._pace_ns / self._share)
        return self._last

    def _learn(self, last: "Turn", now: int) -> None:
        """What is held waits for turns of that length. One that holds nothing back tells less."""
        self._share = max(1, TAKEN // max(1, last.lines))
        took_ns = now - last.now if last.holds else 0
        self._pace_ns += PACE * (took_ns - self._pace_ns)


class Turn:
    """One look at the calls that came together. Not thread-safe."""

    def __init__(
        self, inference: Inference, take: Take, now: int, share: int, row_ns: float
    ) -> None:
        """Lets in `share` of each model and tenant; each of them takes `row_ns`. In the end `lines`
        is how many of these there were, and `holds` whether some are to be looked at again."""
        self._inference, self._take, self.now = inference, take, now
        self.lines, self.holds = 0, False
        self._share, self._row_ns = share, row_ns
        self._lines: dict[tuple[bytes, Pairs], _Line | None] = {}
        self._foreseen = True
        self._default_ns = inference.admission.default_timeout_s * 1e9 or FOR_EVER

    def refusal(self, message: bytes, metadata: Pairs, left_s: float | None) -> SitsError | None:
        """Why a call is refused; None for those to be taken, also where it cannot be told."""
        head = beginning(message)
        if head is None:
            return None
        left_ns = self._default_ns if left_s is None else left_s * 1e9
        who = tuple([pair for pair in metadata if pair[0] in _WHO]) if metadata else ()
        key = head, who
        if key in self._lines:
            line = self._lines[key]
        else:
            line = self._lines[key] = self._line(message, text_metadata(who), left_ns)
        return None if line is None else line.refusal(left_ns)

    def take(self, arrivals: Arrivals) -> None:
        """Those that were let in, in the order in which they came."""
        self._take(arrivals, self._foreseen)

    def end(self, now: int) -> None:
        """Account for what was refused, together, and keep nothing of it."""
        engine, accounts = self._inference.engine, self._inference.accounts
        for line in filter(None, self._lines.values()):
            for error, calls in line.refused.items():
                engine.turned_away(error, calls, now)
                accounts.turned_away(line.whose, error, calls, now - self.now)
            self.holds |= line.share < 0
        self.lines = len(self._lines)
        self._lines.clear()

    def _line(self, message: bytes, metadata: Metadata, left_ns: float) -> "_Line | None":
        """None where calls must be read, or each be asked about for itself."""
        now, admission = self.now, self._inference.admission
        deadline = None if left_ns == FOR_EVER else Deadline(now + int(left_ns))
        request = Request(_nobody, now)
        try:
            origin = admission.origin(_Caller(metadata, deadline))
            if not admission.name(OipMessage(message), origin, request):
                return None
        except SitsError:
            return None
        look = self._inference.engine.look(request, now)
        if look.each:
            self._foreseen = False
            return None
        return _Line(request, look, left_ns, self._share, self._row_ns)


class _Caller(NamedTuple):
    """As much of a call as its origin is read from."""

    metadata: Metadata
    deadline: Deadline | None


class _Line:
    """Calls of one model and tenant that came together. Those that have no more time left than
    `_below_ns` are refused with `_error`. After `share` others
    come later; each before them takes `row_ns` at least."""

    __slots__ = ("_below_ns", "_error", "_needs", "_places", "_row_ns", "refused", "share", "whose")

    def __init__(
        self, request: Request, look: Look, left_ns: float, share: int, row_ns: float
    ) -> None:
        self.whose = Whose(request.model, request.version, request.tenant)
        self.refused: dict[SitsError, int] = {}
        self._needs, self._places, self.share = look.needs, look.places, share
        self._row_ns = max(row_ns, look.needs.row_ns)
        self._error: SitsError = PASSED
        self._below_ns = 0.0
        if look.error is not None:
            timely = look.error.reason == Reason.DEADLINE
            self._error, self._below_ns = look.error, left_ns if timely else FOR_EVER

    def refusal(self, left_ns: float) -> SitsError | None:
        needs = self._needs
        if left_ns > self._below_ns:
            if left_ns >= needs.time_ns and self._places > 0:
                self._let_in()
                return None if self.share >= 0 else LATER
            self._refuse(left_ns)
        self.refused[self._error] = self.refused.get(self._error, 0) + 1
        return self._error

    def _let_in(self) -> None:
        time_ns, wait_ns, _ = self._needs
        row_ns = self._row_ns
        self._needs = Needs(time_ns + row_ns, wait_ns + row_ns, row_ns)
        self._places -= 1
        self.share -= 1

    def _refuse(self, left_ns: float) -> None:
        """From now on, all that have no more time left."""
        if self._places <= 0:
            self._error, self._below_ns = QUEUE_FULL, FOR_EVER
        else:
            self._error, self._below_ns = late(self._needs, left_ns), left_ns


def _nobody(_result: Result) -> None:
    """The request that is asked about is not taken."""
