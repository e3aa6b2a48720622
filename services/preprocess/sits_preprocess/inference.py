"""The life of an inference request, whichever RPC brought it: read, check, submit, answer."""

import threading
from collections.abc import Callable
from typing import NamedTuple, Protocol

import structlog

from sits_core.clock import now_ns
from sits_core.errors import DeadlineExceeded, Internal, SitsError, Unavailable
from sits_preprocess.accounts import OK, Accounts, Finished
from sits_preprocess.admission import Admission, Origin
from sits_preprocess.catalog import Catalog
from sits_preprocess.oip.draft import Draft
from sits_preprocess.oip.outputs import release
from sits_preprocess.oip.result import Result, result_of
from sits_preprocess.request import Answer, Request

log = structlog.get_logger()

SHUTTING_DOWN = "GRPC server is shutting down and has stopped accepting new requests."
Read = Callable[[], Draft]
Reply = Callable[[Result], None]


class Engine(Protocol):
    """Everything behind a checked request."""

    @property
    def catalog(self) -> Catalog: ...

    def submit(self, request: Request) -> None:
        """Raises `SitsError` when refused; otherwise `request.answer` is called once."""
        ...

    def cancel(self, request: Request) -> None:
        """Idempotent; leads to the one answer soon."""
        ...


class OpenLimits(NamedTuple):
    """`open_bytes` of all requests that are not answered yet; one alone may be larger."""

    message_bytes: int
    open_bytes: int


class Inference:
    """Answers every request exactly once. Safe from any thread; never blocks."""

    def __init__(
        self, engine: Engine, admission: Admission, accounts: Accounts, limits: OpenLimits
    ) -> None:
        self.engine, self.admission, self.accounts = engine, admission, accounts
        self.limits = limits
        self._open: dict[Exchange, int] = {}
        self._open_bytes = 0
        self._lock = threading.Lock()
        self._draining = False

    def start(self, read: Read, origin: Origin, size_bytes: int, reply: Reply) -> "Exchange":
        """Take on a request of so many bytes; `reply` gets its result, refusals included,
        from any thread."""
        exchange = Exchange(self, origin, reply)
        try:
            self._open_up(exchange, origin, size_bytes)
            exchange.submit(read())
        except Exception as error:  # noqa: BLE001 - every request ends in one answer
            exchange.answered(Answer(error=shown(error)))
        return exchange

    def _open_up(self, exchange: "Exchange", origin: Origin, size_bytes: int) -> None:
        """Before anything is read: late and unwanted requests cost next to nothing."""
        if origin.deadline is not None and origin.deadline.passed(exchange.known.received_ns):
            raise DeadlineExceeded("deadline had passed when the request arrived")
        if self._draining:
            raise Unavailable(SHUTTING_DOWN, reason="DRAINING")
        with self._lock:
            if self._open and self._open_bytes + size_bytes > self.limits.open_bytes:
                raise Unavailable(
                    f"Exceeds maximum queue size: {self._open_bytes} of "
                    f"{self.limits.open_bytes} bytes are taken, the request has {size_bytes}",
                    reason="QUEUE_FULL",
                )
            self._open[exchange] = size_bytes
            self._open_bytes += size_bytes

    def forget(self, exchange: "Exchange") -> None:
        with self._lock:
            self._open_bytes -= self._open.pop(exchange, 0)

    def drain(self) -> None:
        """Refuse new requests from now on."""
        self._draining = True

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def open_bytes(self) -> int:
        return self._open_bytes

    @property
    def open_requests(self) -> int:
        return len(self._open)

    def __repr__(self) -> str:
        state = "draining" if self._draining else "serving"
        return f"<Inference {state} open={len(self._open)}>"


class Exchange:
    """One request from arrival to its answer."""

    __slots__ = ("_inference", "_origin", "_reply", "known")

    def __init__(self, inference: Inference, origin: Origin, reply: Reply) -> None:
        self._inference, self._origin, self._reply = inference, origin, reply
        self.known = inference.admission.blank(origin, now_ns())

    def submit(self, draft: Draft) -> None:
        """Raises `SitsError` when the request is refused, by us or by the engine."""
        inference = self._inference
        request = inference.admission.check(draft, self._origin, self.known, self.answered)
        inference.engine.submit(request)

    def cancel(self) -> None:
        """May be called at any time and more than once."""
        request = self.known.request
        if request is not None:
            self._inference.engine.cancel(request)

    def answered(self, answer: Answer) -> None:
        """The end, from whatever thread brings it. Does not raise."""
        result = self._result(answer)
        release(self.known.wanted)
        self._account(answer if result.error is None else answer._replace(error=result.error))
        self._inference.forget(self)
        try:
            self._reply(result)
        except Exception as error:  # noqa: BLE001 - every request ends in one answer
            self._reply(Result(self.known.id, error=shown(error)))
        # Request and call know this exchange too: a cycle would keep their payloads until
        # the garbage collector comes by.
        self.known.request, self._reply = None, _to_nobody

    def _result(self, answer: Answer) -> Result:
        known = self.known
        if answer.error is not None or known.signature is None:
            return Result(known.id, error=answer.error or Internal("internal error"))
        try:
            limit = self._inference.limits.message_bytes
            return result_of(known.id, known.signature, answer, known.wanted, limit)
        except Exception as error:  # noqa: BLE001 - every request ends in one answer
            return Result(known.id, error=shown(error))

    def _account(self, answer: Answer) -> None:
        known = self.known
        finished = Finished(
            model="" if known.signature is None else known.signature.model.name,
            version="" if known.signature is None else known.signature.model.version,
            tenant=known.tenant,
            rows=0 if known.request is None else known.request.rows,
            payload_bytes=0 if known.request is None else known.request.payload_bytes,
            received_ns=known.received_ns,
            batch_closed_ns=answer.times.batch_closed,
            ended_ns=now_ns(),
            outcome=OK if answer.error is None else answer.error.status.name,
            parent=known.parent,
            trace=known.trace,
        )
        self._inference.accounts.finished(finished)
        if known.request is not None:
            self._inference.accounts.statistics.record(known.request, answer)


def _to_nobody(_result: Result) -> None:
    return None


def shown(error: Exception) -> SitsError:
    """What the client sees of an exception; the log has the rest."""
    if isinstance(error, SitsError):
        return error
    log.error("request.failed", error=type(error).__name__, exc_info=error)
    return Internal("internal error")
