"""Results to messages of the Open Inference Protocol, unary and streamed."""

from sits_core.errors import SitsError
from sits_preprocess.oip.parameters import EXPLAIN
from sits_preprocess.oip.result import Result
from sits_preprocess.request import ParameterValue
from sits_protos.oip.grpc_service_pb2 import (
    InferParameter,
    ModelInferResponse,
    ModelStreamInferResponse,
)

FINAL = "triton_final_response"


def response_of(result: Result) -> ModelInferResponse:
    """Exactly one raw entry for each output, in their order: clients index it unchecked."""
    response = ModelInferResponse(
        model_name=result.model, model_version=result.version, id=result.id
    )
    for tensor in result.outputs:
        output = response.outputs.add(
            name=tensor.name, datatype=tensor.datatype, shape=tensor.shape
        )
        data = tensor.data
        response.raw_output_contents.append(data if isinstance(data, bytes) else bytes(data))
        if result.places and (place := result.places.get(tensor.name)):
            output.parameters["shared_memory_region"].string_param = place.region
            output.parameters["shared_memory_byte_size"].int64_param = place.byte_size
            output.parameters["shared_memory_offset"].int64_param = place.offset
    for key, value in result.parameters.items():
        _set(response.parameters[key], value)
    if result.explanation:
        response.parameters[EXPLAIN].string_param = result.explanation
    return response


def stream_response_of(result: Result) -> ModelStreamInferResponse:
    """The last, because only, response to one request of a stream, an error included.

    An error carries the request's id, and its status and reason as parameters: text alone
    does not say whether a retry makes sense.
    """
    if result.error is None:
        message = ModelStreamInferResponse(infer_response=response_of(result))
    else:
        message = _stream_error(result, result.error)
    message.infer_response.parameters[FINAL].bool_param = True
    return message


def _stream_error(result: Result, error: SitsError) -> ModelStreamInferResponse:
    message = ModelStreamInferResponse(error_message=error.message)
    response = message.infer_response
    response.id, response.model_name = result.id, result.model
    response.model_version = result.version
    response.parameters["sits_status"].string_param = error.status.name
    response.parameters["sits_reason"].string_param = error.reason
    if error.retry_after_ms:
        response.parameters["sits_retry_after_ms"].int64_param = error.retry_after_ms
    return message


def _set(parameter: InferParameter, value: ParameterValue) -> None:
    if isinstance(value, bool):  # before int: a bool is one
        parameter.bool_param = value
    elif isinstance(value, int):
        parameter.int64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = value
