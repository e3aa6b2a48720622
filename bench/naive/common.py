"""Serving and calling ModelInfer with grpc.aio."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from sits_protos.oip.grpc_service_pb2 import ModelInferRequest, ModelInferResponse

SERVICE, METHOD = "inference.GRPCInferenceService", "ModelInfer"
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

Infer = Callable[[ModelInferRequest, Any], Awaitable[ModelInferResponse]]
Call = Callable[[ModelInferRequest], Awaitable[ModelInferResponse]]


async def serve(bind: str, infer: Infer) -> None:
    """Until SIGTERM."""
    method = grpc.unary_unary_rpc_method_handler(
        infer, ModelInferRequest.FromString, ModelInferResponse.SerializeToString
    )
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, {METHOD: method}),)
    )
    server.add_insecure_port(bind)
    await server.start()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()


def connect(address: str) -> Call:
    """A call of the service at `address`, on a channel that stays open."""
    channel = grpc.aio.insecure_channel(address, options=OPTIONS)
    call: Call = channel.unary_unary(
        f"/{SERVICE}/{METHOD}",
        request_serializer=ModelInferRequest.SerializeToString,
        response_deserializer=ModelInferResponse.FromString,
    )
    return call
