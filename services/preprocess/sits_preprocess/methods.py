"""The methods of the Open Inference Protocol that do not infer, and who may call them."""

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from sits_core.clock import Deadline
from sits_core.errors import InvalidArgument
from sits_preprocess.access import Access
from sits_preprocess.metadata import Metadata
from sits_preprocess.repository import Repository
from sits_preprocess.server_settings import LogSettings, TraceSettings
from sits_preprocess.shared_memory import Regions
from sits_preprocess.statistics import Statistics
from sits_preprocess.transport.call import Call, UnaryHandler, run_unary
from sits_protos.oip import grpc_service_pb2 as pb

Request = TypeVar("Request", bound=Message)
Rights = Callable[[Call, Message], object]


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that these methods call; `ready` is the whole server's readiness."""

    ready: Callable[[], bool]
    metadata: Metadata
    statistics: Statistics
    regions: Regions
    repository: Repository
    trace_settings: TraceSettings
    log_settings: LogSettings
    access: Access


class Methods:
    """Handlers by method name. Those that may wait run on `workers`."""

    def __init__(self, services: Services, workers: Executor) -> None:
        self._services, self._workers = services, workers

    def handlers(self) -> dict[str, UnaryHandler]:
        return {**self._server(), **self._models(), **self._operations(), **self._shared_memory()}

    def _server(self) -> dict[str, UnaryHandler]:
        s = self._services
        return {
            "ServerLive": self._quick(
                pb.ServerLiveRequest, lambda _: pb.ServerLiveResponse(live=True), self._anyone
            ),
            "ServerReady": self._quick(
                pb.ServerReadyRequest,
                lambda _: pb.ServerReadyResponse(ready=s.ready()),
                self._anyone,
            ),
            "ServerMetadata": self._quick(
                pb.ServerMetadataRequest, lambda _: s.metadata.server_metadata()
            ),
        }

    def _models(self) -> dict[str, UnaryHandler]:
        s = self._services
        return {
            "ModelReady": self._quick(pb.ModelReadyRequest, s.metadata.model_ready),
            "ModelMetadata": self._quick(pb.ModelMetadataRequest, s.metadata.model_metadata),
            "ModelConfig": self._quick(pb.ModelConfigRequest, s.metadata.model_config),
            "ModelStatistics": self._slow(
                pb.ModelStatisticsRequest,
                lambda r, _: s.statistics.report(s.metadata.statistics_models(r)),
            ),
            "RepositoryIndex": self._slow(pb.RepositoryIndexRequest, s.repository.index),
        }

    def _operations(self) -> dict[str, UnaryHandler]:
        s = self._services
        return {
            "RepositoryModelLoad": self._slow(
                pb.RepositoryModelLoadRequest, s.repository.load, self._admin
            ),
            "RepositoryModelUnload": self._slow(
                pb.RepositoryModelUnloadRequest, s.repository.unload, self._admin
            ),
            "TraceSetting": self._slow(
                pb.TraceSettingRequest,
                lambda r, _: s.trace_settings.update(r),
                self._admin_to_change,
            ),
            "LogSettings": self._slow(
                pb.LogSettingsRequest, lambda r, _: s.log_settings.update(r), self._admin_to_change
            ),
        }

    def _shared_memory(self) -> dict[str, UnaryHandler]:
        regions, admin = self._services.regions, self._admin
        return {
            "SystemSharedMemoryStatus": self._quick(
                pb.SystemSharedMemoryStatusRequest, regions.system_status
            ),
            "SystemSharedMemoryRegister": self._quick(
                pb.SystemSharedMemoryRegisterRequest, regions.register_system, admin
            ),
            "SystemSharedMemoryUnregister": self._quick(
                pb.SystemSharedMemoryUnregisterRequest, regions.unregister_system, admin
            ),
            "CudaSharedMemoryStatus": self._quick(
                pb.CudaSharedMemoryStatusRequest, regions.cuda_status
            ),
            "CudaSharedMemoryRegister": self._quick(
                pb.CudaSharedMemoryRegisterRequest, regions.register_cuda, admin
            ),
            "CudaSharedMemoryUnregister": self._quick(
                pb.CudaSharedMemoryUnregisterRequest, regions.unregister_cuda, admin
            ),
        }

    def _quick(
        self,
        kind: type[Request],
        method: Callable[[Request], Message],
        rights: Rights | None = None,
    ) -> UnaryHandler:
        """A method that never waits; it runs where the transport calls."""
        check = rights or self._client

        def handle(message: bytes, call: Call) -> None:
            request = _parse(kind, message)
            check(call, request)
            call.respond(method(request).SerializeToString())

        return handle

    def _slow(
        self,
        kind: type[Request],
        method: Callable[[Request, Deadline | None], Message],
        rights: Rights | None = None,
    ) -> UnaryHandler:
        """A method that may wait; it runs on a worker once the caller's rights are clear."""
        check = rights or self._client

        def handle(message: bytes, call: Call) -> None:
            request = _parse(kind, message)
            check(call, request)
            self._workers.submit(run_unary, partial(finish, request), message, call)

        def finish(request: Request, _message: bytes, call: Call) -> None:
            call.respond(method(request, call.deadline).SerializeToString())

        return handle

    def _anyone(self, call: Call, request: Message) -> None:
        """Probes have no key."""

    def _client(self, call: Call, request: Message) -> None:
        self._services.access.require_client(call.metadata)

    def _admin(self, call: Call, request: Message) -> None:
        """Before anything is looked up, so that the refusal tells nothing."""
        self._services.access.require_admin(call.metadata)

    def _admin_to_change(self, call: Call, request: Message) -> None:
        changes = any(descriptor.name == "settings" for descriptor, _value in request.ListFields())
        (self._admin if changes else self._client)(call, request)


def _parse(kind: type[Request], message: bytes) -> Request:
    try:
        return kind.FromString(message)
    except DecodeError:
        raise InvalidArgument(f"expected a {kind.DESCRIPTOR.full_name} message") from None
