"""Whether a service says it is ready, by `grpc.health.v1`."""

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

CHECK_TIMEOUT_S = 1.0


def ready(address: str, timeout_s: float = CHECK_TIMEOUT_S) -> bool:
    """False as well when nobody answers. A fresh connection, so no back-off hides a start."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(address, options=options) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
