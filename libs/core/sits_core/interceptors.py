"""What every gRPC server of the mesh does before and after a call: tokens and errors."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import structlog

from sits_core.errors import SitsError
from sits_core.logs import RateLimited

log = structlog.get_logger()

Metadata = Iterable[tuple[str, str | bytes]]

_OPEN_METHODS = ("/grpc.health.v1.Health/", "/grpc.reflection.")

if TYPE_CHECKING:
    Interceptor = grpc.ServerInterceptor[Any, Any]
    Handler = grpc.RpcMethodHandler[Any, Any]
else:  # generic in the stubs only
    Interceptor, Handler = grpc.ServerInterceptor, grpc.RpcMethodHandler


class TokenInterceptor(Interceptor):
    """Refuses calls whose metadata `accepts` does not. Health and reflection need no token."""

    def __init__(self, accepts: Callable[[Metadata], bool]) -> None:
        self._accepts = accepts
        # Whatever the call's kind: a stream is refused before its first message is read.
        self._refusal = grpc.stream_stream_rpc_method_handler(_refuse)

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Handler | None],
        details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        is_open = details.method.startswith(_OPEN_METHODS)
        if is_open or self._accepts(details.invocation_metadata):
            return continuation(details)
        return self._refusal


def _refuse(_requests: object, context: grpc.ServicerContext) -> Any:
    context.abort(grpc.StatusCode.UNAUTHENTICATED, "this call needs a valid bearer token")


class ErrorInterceptor(Interceptor):
    """Turns `SitsError` into its status; anything unknown into INTERNAL without detail."""

    def __init__(self) -> None:
        self._may_log = RateLimited()

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Handler | None],
        details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler = continuation(details)
        # Health's Watch has a calling convention of its own.
        if handler is None or details.method.startswith(_OPEN_METHODS):
            return handler
        return self._guard(handler, details.method)

    def _guard(self, handler: Handler, method: str) -> Handler:
        inner: Any = (
            handler.unary_unary
            or handler.unary_stream
            or handler.stream_unary
            or handler.stream_stream
        )

        def unary(request: object, context: grpc.ServicerContext) -> Any:
            with self._errors_mapped(method, context):
                return inner(request, context)

        def stream(request: object, context: grpc.ServicerContext) -> Iterator[Any]:
            with self._errors_mapped(method, context):
                yield from inner(request, context)

        make = _HANDLERS[handler.request_streaming, handler.response_streaming]
        behaviour = stream if handler.response_streaming else unary
        return make(behaviour, handler.request_deserializer, handler.response_serializer)

    @contextmanager
    def _errors_mapped(self, method: str, context: grpc.ServicerContext) -> Iterator[None]:
        try:
            yield
        except SitsError as error:
            context.abort(error.status, error.message)
        except Exception as error:
            if type(error) in (Exception, grpc.RpcError) and not error.args:
                raise  # how gRPC itself ends a handler: context.abort, or a caller who left
            name = type(error).__name__
            if (held := self._may_log(f"{method} {name}")) is not None:
                log.exception("rpc.failed", method=method, error=name, suppressed=held)
            context.abort(grpc.StatusCode.INTERNAL, "internal error")


_HANDLERS: dict[tuple[bool, bool], Callable[..., Handler]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}
"""By whether requests and responses are streams."""
