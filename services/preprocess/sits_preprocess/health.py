"""`grpc.health.v1` on the front port: SERVING exactly while the server is ready."""

import threading
from collections.abc import Callable, Collection

from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2 as pb

from sits_core.errors import InvalidArgument, NotFound, Unavailable
from sits_core.healthcheck import ALIVE
from sits_preprocess.inference import SHUTTING_DOWN
from sits_preprocess.transport.call import Call, Outgoing, StreamCall

_STATUS = pb.HealthCheckResponse


class Health:
    """Check and Watch. `refresh` tells watchers; call it now and then, and on changes."""

    def __init__(self, ready: Callable[[], bool], services: Collection[str]) -> None:
        self._ready, self._services = ready, ("", *services, ALIVE)
        self._watchers: dict[Watcher, bytes] = {}
        self._lock = threading.Lock()

    def check(self, message: bytes, call: Call) -> None:
        service = _service(message)
        if service not in self._services:
            raise NotFound(f"unknown service '{service}'")
        call.respond(self.status(service))

    def watch(self, call: StreamCall) -> "Watcher":
        return Watcher(call, self)

    def status(self, service: str) -> bytes:
        if service not in self._services:
            return _response(_STATUS.SERVICE_UNKNOWN)
        well = service == ALIVE or self._ready()
        return _response(_STATUS.SERVING if well else _STATUS.NOT_SERVING)

    def tell(self, watcher: "Watcher") -> None:
        """Send the watcher what it has not been told yet."""
        status = self.status(watcher.service)
        with self._lock:
            if self._watchers.get(watcher) == status:
                return
            self._watchers[watcher] = status
        watcher.send(status)

    def refresh(self) -> None:
        with self._lock:
            watchers = list(self._watchers)
        for watcher in watchers:
            self.tell(watcher)

    def end(self) -> None:
        """The server stops: watchers are told so, once they know that it is not ready."""
        self.refresh()
        with self._lock:
            watchers = list(self._watchers)
        for watcher in watchers:
            watcher.end()

    @property
    def watchers(self) -> int:
        return len(self._watchers)

    def forget(self, watcher: "Watcher") -> None:
        with self._lock:
            self._watchers.pop(watcher, None)


class Watcher:
    """Handler of one Watch: one request, then a response for each change."""

    def __init__(self, call: StreamCall, health: Health) -> None:
        self._call, self._health = call, health
        self.service = ""

    def on_message(self, message: bytes) -> None:
        self.service = _service(message)
        self._health.tell(self)

    def send(self, status: bytes) -> None:
        self._call.send(Outgoing(status))

    def end(self) -> None:
        self._call.fail(Unavailable(SHUTTING_DOWN, reason="DRAINING"))

    def on_half_close(self) -> None:
        """Clients of a server-streaming call close their half at once."""

    def on_end(self) -> None:
        self._health.forget(self)


def _response(status: int) -> bytes:
    return bytes(_STATUS(status=status).SerializeToString())


def _service(message: bytes) -> str:
    try:
        return str(pb.HealthCheckRequest.FromString(message).service)
    except DecodeError:
        raise InvalidArgument("expected a grpc.health.v1.HealthCheckRequest") from None
