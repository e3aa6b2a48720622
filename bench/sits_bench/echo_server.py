"""The floor: ModelInfer as an echo on grpcio alone. `python -m sits_bench.echo_server sync PORT`.

Parse, build, serialize: what any server in Python has to do, and nothing else.
"""

import asyncio
import signal
import sys
import threading
from concurrent import futures
from typing import Any

import grpc
import grpc.aio

from sits_protos.oip.grpc_service_pb2 import ModelInferRequest, ModelInferResponse

THREADS = 8
"""What measured best: 2 threads were 40 % slower, 32 a third."""
SERVICE, METHOD = "inference.GRPCInferenceService", "ModelInfer"
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def echo(request: ModelInferRequest) -> ModelInferResponse:
    response = ModelInferResponse(model_name=request.model_name, model_version="1", id=request.id)
    for tensor in request.inputs:
        response.outputs.add(name="OUTPUT", datatype=tensor.datatype, shape=tensor.shape)
    response.raw_output_contents.extend(request.raw_input_contents)
    return response


def handlers(infer: Any) -> Any:
    method = grpc.unary_unary_rpc_method_handler(
        infer, ModelInferRequest.FromString, ModelInferResponse.SerializeToString
    )
    return (grpc.method_handlers_generic_handler(SERVICE, {METHOD: method}),)


def serve_sync(bind: str) -> None:
    server = grpc.server(futures.ThreadPoolExecutor(THREADS), options=OPTIONS)
    server.add_generic_rpc_handlers(handlers(lambda request, _context: echo(request)))
    server.add_insecure_port(bind)
    server.start()
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stopped.set())
    stopped.wait()


async def serve_aio(bind: str) -> None:
    async def infer(request: ModelInferRequest, _context: Any) -> ModelInferResponse:
        return echo(request)

    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers(handlers(infer))
    server.add_insecure_port(bind)
    await server.start()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()


def main() -> None:
    kind, port = sys.argv[1:]
    bind = f"127.0.0.1:{port}"
    if kind == "sync":
        serve_sync(bind)
    else:
        asyncio.run(serve_aio(bind))


if __name__ == "__main__":
    main()
