"""Stage 2: `python -m naive.dispatcher BIND EXECUTOR...`. Picks an executor at random."""

import asyncio
import random
import sys
from typing import Any

from naive.common import connect, serve
from sits_protos.oip.grpc_service_pb2 import ModelInferRequest, ModelInferResponse


async def main(bind: str, executors: list[str]) -> None:
    calls = [connect(address) for address in executors]

    async def infer(request: ModelInferRequest, _context: Any) -> ModelInferResponse:
        return await random.choice(calls)(request)  # noqa: S311 - no secret

    await serve(bind, infer)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
