"""The errors SITS answers with: a gRPC status, a machine-readable reason, a text safe to show."""

from functools import lru_cache

import grpc
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from sits_protos.v1.common_pb2 import Error

MAX_MESSAGE_BYTES = 1000
"""Longer texts are cut, so that trailers never outgrow the metadata limit."""


REASON_KEY = "sits-reason"
RETRY_KEY = "sits-retry-after-ms"
PUSHBACK_KEY = "grpc-retry-pushback-ms"
"""gRPC clients with a retry policy wait that long."""
DETAILS_KEY = "grpc-status-details-bin"
"""A `google.rpc.Status` with `RetryInfo`, the form that clients of Google's APIs know."""
DOMAIN = "sits"

Trailers = tuple[tuple[str, str | bytes], ...]


class SitsError(Exception):
    """Base of all errors that may be shown to a caller.

    `reason` defaults to the class name in upper snake case. `retry_after_ms`: when a retry may
    pass; 0 = not told.
    """

    status: grpc.StatusCode = grpc.StatusCode.INTERNAL
    reason: str = "INTERNAL"
    retry_after_ms: int = 0

    def __init__(self, message: str, *, reason: str | None = None, retry_after_ms: int = 0) -> None:
        super().__init__(message)
        if reason is not None:
            self.reason = reason
        if retry_after_ms:
            self.retry_after_ms = retry_after_ms

    @property
    def message(self) -> str:
        """The text, cut to `MAX_MESSAGE_BYTES` of printable UTF-8."""
        return safe_text(str(self))

    def to_proto(self) -> Error:
        return Error(
            code=self.status.value[0],
            message=self.message,
            reason=self.reason,
            retry_after_ms=self.retry_after_ms,
        )

    def trailers(self) -> Trailers:
        """Metadata that goes with the status: why, and for gRPC's retries, when to come back."""
        why, after_ms = (REASON_KEY, self.reason), self.retry_after_ms
        if not after_ms:
            return (why,)
        details = _details(self.status.value[0], self.message, self.reason, after_ms)
        return (
            why, (RETRY_KEY, str(after_ms)), (PUSHBACK_KEY, str(after_ms)), (DETAILS_KEY, details),
        )  # fmt: skip


@lru_cache(maxsize=1024)
def _details(code: int, message: str, reason: str, after_ms: int) -> bytes:
    """Remembered: a burst is refused in few words."""
    status, retry = Status(code=code, message=message), RetryInfo()
    retry.retry_delay.FromMilliseconds(after_ms)
    for detail in (retry, ErrorInfo(reason=reason, domain=DOMAIN)):
        status.details.add().Pack(detail)
    data: bytes = status.SerializeToString()
    return data


class InvalidArgument(SitsError):
    """The request can never succeed: says what was expected and what came."""

    status = grpc.StatusCode.INVALID_ARGUMENT
    reason = "INVALID_ARGUMENT"


class NotFound(SitsError):
    status = grpc.StatusCode.NOT_FOUND
    reason = "NOT_FOUND"


class AlreadyExists(SitsError):
    status = grpc.StatusCode.ALREADY_EXISTS
    reason = "ALREADY_EXISTS"


class Unavailable(SitsError):
    """Not now: overload, loading, draining or nobody to run it. Worth a retry."""

    status = grpc.StatusCode.UNAVAILABLE
    reason = "UNAVAILABLE"


class ResourceExhausted(SitsError):
    status = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "RESOURCE_EXHAUSTED"


class DeadlineExceeded(SitsError):
    status = grpc.StatusCode.DEADLINE_EXCEEDED
    reason = "DEADLINE_EXCEEDED"


class Cancelled(SitsError):
    status = grpc.StatusCode.CANCELLED
    reason = "CANCELLED"


class Unimplemented(SitsError):
    status = grpc.StatusCode.UNIMPLEMENTED
    reason = "UNIMPLEMENTED"


class Unauthenticated(SitsError):
    status = grpc.StatusCode.UNAUTHENTICATED
    reason = "UNAUTHENTICATED"


class PermissionDenied(SitsError):
    status = grpc.StatusCode.PERMISSION_DENIED
    reason = "PERMISSION_DENIED"


class Internal(SitsError):
    """A fault of ours or of the model. The cause is in the log, not in the text."""


_BY_CODE: dict[int, type[SitsError]] = {
    cls.status.value[0]: cls
    for cls in (
        InvalidArgument, NotFound, AlreadyExists, Unavailable, ResourceExhausted, DeadlineExceeded,
        Cancelled, Unimplemented, Unauthenticated, PermissionDenied, Internal,
    )
}  # fmt: skip


def from_proto(error: Error) -> SitsError:
    """The exception a peer sent; unknown codes become `Internal`."""
    cls = _BY_CODE.get(error.code, Internal)
    return cls(error.message, reason=error.reason or None, retry_after_ms=error.retry_after_ms)


def from_rpc(error: grpc.RpcError) -> SitsError:
    """The exception behind a failed gRPC call of ours."""
    code: grpc.StatusCode | None = getattr(error, "code", lambda: None)()
    if code is None:
        return Internal("call failed without a status")
    details: str | None = getattr(error, "details", lambda: None)()
    return _BY_CODE.get(code.value[0], Internal)(details or code.name)


def safe_text(text: str) -> str:
    """`text` without control characters, cut to `MAX_MESSAGE_BYTES` bytes of UTF-8."""
    if len(text) <= MAX_MESSAGE_BYTES // 4 and text.isprintable():
        return text  # as nearly all are
    printable = "".join(c if c.isprintable() else " " for c in text[: MAX_MESSAGE_BYTES + 1])
    encoded = printable.encode("utf-8", "replace")
    if len(encoded) <= MAX_MESSAGE_BYTES:
        return printable
    return encoded[: MAX_MESSAGE_BYTES - 3].decode("utf-8", "ignore") + "…"
