"""gRPC reflection on the front port, over a descriptor pool put together for it.

The Open Inference Protocol lies in a pool of its own (`sits_protos.oip.pool`), so what
reflection shows cannot come from the default one.
"""

from collections.abc import Iterable, Iterator
from typing import Protocol, cast

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest as Request

from sits_core.errors import InvalidArgument
from sits_preprocess.transport.call import Held, Outgoing, StreamCall
from sits_protos.oip import grpc_service_pb2
from sits_protos.v1 import inference_pb2

PATH = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


class Servicer(Protocol):
    """What grpc_reflection's servicer is, truly; its stubs say it returns nothing."""

    def ServerReflectionInfo(
        self, requests: Iterator[Request], context: object
    ) -> Iterator[Message]: ...


class Reflection:
    """Knows the files of the front port's services."""

    def __init__(self, services: Iterable[str]) -> None:
        pool, known = DescriptorPool(), set[str]()
        for module in (grpc_service_pb2, inference_pb2, health_pb2, reflection_pb2):
            _add(pool, module.DESCRIPTOR, known)
        names = (*services, reflection.SERVICE_NAME)
        self._servicer = cast("Servicer", reflection.ReflectionServicer(names, pool))

    def open(self, call: StreamCall) -> "ReflectionStream":
        return ReflectionStream(call, self._servicer)


class ReflectionStream:
    """Handler of one stream: a response for each request, at once."""

    def __init__(self, call: StreamCall, servicer: Servicer) -> None:
        self._call, self._servicer = call, servicer

    def on_message(self, message: bytes) -> None:
        try:
            request = Request.FromString(message)
        except DecodeError:
            raise InvalidArgument("expected a ServerReflectionRequest") from None
        for response in self._servicer.ServerReflectionInfo(iter((request,)), None):
            self._call.send(Outgoing(response.SerializeToString(), Held(1, len(message))))

    def on_half_close(self) -> None:
        self._call.finish()

    def on_end(self) -> None:
        """Nothing is in flight."""


def _add(pool: DescriptorPool, file: FileDescriptor, known: set[str]) -> None:
    """`file` after what it imports."""
    if file.name in known:
        return
    known.add(file.name)
    for dependency in file.dependencies:
        _add(pool, dependency, known)
    pool.AddSerializedFile(file.serialized_pb)
