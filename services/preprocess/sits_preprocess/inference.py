"""The life of an inference request, whichever RPC brought it: read, check, submit, answer."""

import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

import structlog

from sits_core.clock import now_ns
from sits_core.errors import DeadlineExceeded, Internal, SitsError, Unavailable
from sits_preprocess.accounts import Accounts
from sits_preprocess.admission import Admission, Origin
from sits_preprocess.catalog import Catalog
from sits_preprocess.gates import Look
from sits_preprocess.oip.draft import Unread
from sits_preprocess.oip.outputs import release
from sits_preprocess.oip.result import Result, result_of
from sits_preprocess.request import Answer, Answered, Request

log = structlog.get_logger()

FEW: Final = 8
"""So many answers leave before they are accounted. Of more, each waits for the others anyway, and
what clients send next should find this thread done."""

PASSED = DeadlineExceeded("deadline had passed when the request arrived")
SHUTTING_DOWN = "GRPC server is shutting down and has stopped accepting new requests."


class Ask(NamedTuple):
    """A request as it came, who sent it, how large it is, where its result goes (refusals
    included, from any thread)."""

    message: Unread
    origin: Origin
    size_bytes: int
    reply: Callable[[Result], None]


class Engine(Protocol):
    """Everything behind a checked request."""

    @property
    def catalog(self) -> Catalog: ...

    @property
    def degraded(self) -> bool:
        """Whether governance asks for cheaper answers."""
        ...

    def deliver_to(self, sink: Callable[[Sequence[Answered]], None]) -> None:
        """Give all answers to `sink`, which does not raise, from any thread."""
        ...

    def refusing(self, now: int) -> bool:
        """Whether requests have been refused just now: then it pays to ask `foresee`."""
        ...

    def foresee(self, request: Request, now: int) -> SitsError | None:
        """Why a request, of which no more is known than its model, version, tenant and
        deadline, would be refused."""
        ...

    def look(self, request: Request, now: int) -> Look:
        """The same, and what it says of others that came together with it."""
        ...

    def turned_away(self, error: SitsError, requests: int, now: int) -> None:
        """So many more were refused for what `look` had said, or for their deadlines."""
        ...

    def submit(self, requests: Sequence[Request]) -> None:
        """Take requests together; each gets one answer, also when it is refused."""
        ...

    def cancel(self, request: Request) -> None:
        """Idempotent; leads to the one answer soon."""
        ...


class OpenLimits(NamedTuple):
    """`open_bytes` of all requests that are not answered yet; one alone may be larger."""

    message_bytes: int
    open_bytes: int


class Inference:
    """Answers every request exactly once. Safe from any thread; never blocks.

    What came together is submitted together, and what is answered together is accounted
    together: locks and look-ups cost once a batch.
    """

    def __init__(
        self, engine: Engine, admission: Admission, accounts: Accounts, limits: OpenLimits
    ) -> None:
        self.engine, self.admission, self.accounts = engine, admission, accounts
        self.limits = limits
        self._open = self._open_bytes = 0
        self._lock = threading.Lock()
        self._leaving = self._draining = False

    def start(self, asks: Sequence[Ask], now: int, *, foreseen: bool = False) -> list[Request]:
        """Take on requests that arrived at `now`; each `reply` gets its result. `foreseen`: they
        have been looked at, and would not be refused."""
        tenant = self.admission.tenant
        requests = [Request(a.reply, now, a.size_bytes, tenant(a.origin)) for a in asks]
        with self._lock:
            refusals = [self._reserve(request) for request in requests]
        admitted: list[Request] = []
        refused: list[Answered] = []
        overload = not foreseen and self.engine.refusing(now)
        for ask, request, full in zip(asks, requests, refusals, strict=True):
            error = full or self._admit(ask, request, overload)
            if error is None:
                admitted.append(request)
            else:
                refused.append((request, Answer(error=error)))
        if refused:
            self.answered(refused)
        if admitted:
            self.engine.submit(admitted)
        return requests

    def cancel(self, request: Request) -> None:
        """May be called at any time and more than once."""
        if not request.answered:
            self.engine.cancel(request)

    def answered(self, answered: Sequence[Answered]) -> None:
        """The end of requests, from whatever thread brings it. Does not raise."""
        results = [self._result(request, answer) for request, answer in answered]
        ended_ns, accounts = now_ns(), self.accounts
        self._forget([request for request, _ in answered])
        traced = any(request.trace is not None for request, _ in answered)
        if traced or len(answered) > FEW:
            # Who has an answer may look for its spans at once.
            accounts.finished(answered, results, ended_ns)
            _reply_all(answered, results)
            return
        mark = accounts.settling.begin()
        try:
            _reply_all(answered, results)
            accounts.finished(answered, results, ended_ns)
        finally:
            accounts.settling.end(mark)

    def leave(self) -> None:
        """Say that it is not ready; requests are still taken."""
        self._leaving = True

    def drain(self) -> None:
        """Refuse new requests from now on."""
        self._leaving = self._draining = True

    @property
    def leaving(self) -> bool:
        return self._leaving

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def open_bytes(self) -> int:
        return self._open_bytes

    @property
    def open_requests(self) -> int:
        return self._open

    def __repr__(self) -> str:
        return f"<Inference {'draining' if self._draining else 'serving'} open={self._open}>"

    # steps

    def _reserve(self, request: Request) -> SitsError | None:
        """Count it as open. The caller holds the lock."""
        size, taken, limit = request.size_bytes, self._open_bytes, self.limits.open_bytes
        if self._open and taken + size > limit:
            self._open, request.size_bytes = self._open + 1, 0
            return Unavailable(
                f"Exceeds maximum queue size: {taken} of {limit} bytes are taken, the request "
                f"has {size}",
                reason="QUEUE_FULL",
            )
        self._open, self._open_bytes = self._open + 1, taken + size
        return None

    def _forget(self, requests: Sequence[Request]) -> None:
        with self._lock:
            self._open -= len(requests)
            self._open_bytes -= sum([request.size_bytes for request in requests])

    def _admit(self, ask: Ask, request: Request, overload: bool) -> SitsError | None:
        """Late and unwanted requests are refused before anything of them is read."""
        origin = ask.origin
        if origin.deadline is not None and origin.deadline.passed(request.received_ns):
            self.engine.turned_away(PASSED, 1, request.received_ns)
            return PASSED
        if self._draining:
            return Unavailable(SHUTTING_DOWN, reason="DRAINING")
        try:
            if overload and self.admission.name(ask.message, origin, request):
                refusal = self.engine.foresee(request, request.received_ns)
                if refusal is not None:
                    return refusal
            self.admission.check(ask.message.read(), origin, request)
        except Exception as error:  # noqa: BLE001 - every request ends in one answer
            return shown(error)
        return None

    def _result(self, request: Request, answer: Answer) -> Result:
        request.answered = True
        try:
            return result_of(request, answer, self.limits.message_bytes)
        except Exception as error:  # noqa: BLE001 - every request ends in one answer
            return Result(request.id, error=shown(error))
        finally:
            if request.wanted:
                release(request.wanted)


def _reply_all(answered: Sequence[Answered], results: Sequence[Result]) -> None:
    for (request, _), result in zip(answered, results, strict=True):
        _reply(request, result)


def _reply(request: Request, result: Result) -> None:
    try:
        request.reply(result)
    except Exception as error:  # noqa: BLE001 - every request ends in one answer
        request.reply(Result(request.id, error=shown(error)))


def shown(error: Exception) -> SitsError:
    """What the client sees of an exception; the log has the rest."""
    if isinstance(error, SitsError):
        return error
    log.error("request.failed", error=type(error).__name__, exc_info=error)
    return Internal("internal error")
