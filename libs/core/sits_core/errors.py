"""The errors SITS answers with: a gRPC status, a machine-readable reason, a text safe to show."""

import grpc

from sits_protos.v1.common_pb2 import Error

MAX_MESSAGE_BYTES = 1000
"""Longer texts are cut, so that trailers never outgrow the metadata limit."""


class SitsError(Exception):
    """Base of all errors that may be shown to a caller.

    `reason` defaults to the class name in upper snake case.
    """

    status: grpc.StatusCode = grpc.StatusCode.INTERNAL
    reason: str = "INTERNAL"

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        if reason is not None:
            self.reason = reason

    @property
    def message(self) -> str:
        """The text, cut to `MAX_MESSAGE_BYTES` of printable UTF-8."""
        return safe_text(str(self))

    def to_proto(self) -> Error:
        return Error(code=self.status.value[0], message=self.message, reason=self.reason)


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
    return _BY_CODE.get(error.code, Internal)(error.message, reason=error.reason or None)


def from_rpc(error: grpc.RpcError) -> SitsError:
    """The exception behind a failed gRPC call of ours."""
    code: grpc.StatusCode | None = getattr(error, "code", lambda: None)()
    if code is None:
        return Internal("call failed without a status")
    details: str | None = getattr(error, "details", lambda: None)()
    return _BY_CODE.get(code.value[0], Internal)(details or code.name)


def safe_text(text: str) -> str:
    """`text` without control characters, cut to `MAX_MESSAGE_BYTES` bytes of UTF-8."""
    printable = "".join(c if c.isprintable() else " " for c in text[: MAX_MESSAGE_BYTES + 1])
    encoded = printable.encode("utf-8", "replace")
    if len(encoded) <= MAX_MESSAGE_BYTES:
        return printable
    return encoded[: MAX_MESSAGE_BYTES - 3].decode("utf-8", "ignore") + "…"
