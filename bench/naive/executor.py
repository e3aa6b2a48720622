"""Stage 3: `python -m naive.executor BIND`. Runs the identity model on one request."""

import asyncio
import sys
from typing import Any

import numpy as np

from naive.common import serve
from sits_protos.oip.grpc_service_pb2 import ModelInferRequest, ModelInferResponse


async def infer(request: ModelInferRequest, _context: Any) -> ModelInferResponse:
    response = ModelInferResponse(model_name=request.model_name, model_version="1", id=request.id)
    for tensor, content in zip(request.inputs, request.raw_input_contents, strict=True):
        array = np.frombuffer(content, np.float32).reshape(tensor.shape)
        result = identity(array)
        response.outputs.add(name="OUTPUT", datatype=tensor.datatype, shape=result.shape)
        response.raw_output_contents.append(result.tobytes())
    return response


def identity(
    array: "np.ndarray[Any, np.dtype[np.float32]]",
) -> "np.ndarray[Any, np.dtype[np.float32]]":
    return array


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], infer))
