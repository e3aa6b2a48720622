"""Stage 1: `python -m naive.front BIND DISPATCHER`. Checks a request, passes it on."""

import asyncio
import sys
from typing import Any

import grpc

from naive.common import connect, serve
from sits_protos.oip.grpc_service_pb2 import ModelInferRequest, ModelInferResponse


async def main(bind: str, dispatcher: str) -> None:
    call = connect(dispatcher)

    async def infer(request: ModelInferRequest, context: Any) -> ModelInferResponse:
        if len(request.inputs) != len(request.raw_input_contents):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "expected raw input contents")
        return await call(request)

    await serve(bind, infer)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
