"""Requests and answers of `sits.v1.Inference`: to drafts, and from results."""

from functools import partial

from sits_core.errors import InvalidArgument
from sits_preprocess.oip.draft import Draft
from sits_preprocess.oip.limits import MAX_ID_CHARS, MAX_TENSORS, check_count, check_name
from sits_preprocess.oip.outputs import Wanted, output_index
from sits_preprocess.oip.parameters import sits_values
from sits_preprocess.oip.result import Result
from sits_preprocess.oip.signature import Signature
from sits_preprocess.oip.tensors import check_data, check_declared, check_rank, in_model_order
from sits_preprocess.request import TensorData
from sits_preprocess.shared_memory import Regions
from sits_protos.v1.common_pb2 import Tensor
from sits_protos.v1.inference_pb2 import InferRequest, InferResponse


def draft_of(request: InferRequest) -> Draft:
    """Raises `InvalidArgument` when the request declares more than the limits allow."""
    check_name("request id", request.id, MAX_ID_CHARS)
    check_count("inputs", len(request.inputs), MAX_TENSORS)
    check_count("outputs", len(request.outputs), MAX_TENSORS)
    return Draft(
        request.id,
        request.model,
        request.version,
        sits_values(request.parameters) if request.parameters else {},
        partial(_read_inputs, request),
        partial(_read_outputs, request),
    )


def response_of(result: Result, index: int) -> InferResponse:
    response = InferResponse(index=index, id=result.id, model=result.model, version=result.version)
    if result.error is not None:
        response.error.CopyFrom(result.error.to_proto())
    for tensor in result.outputs:
        response.outputs.append(
            Tensor(
                name=tensor.name,
                datatype=tensor.datatype,
                shape=tensor.shape,
                inline=bytes(tensor.data),
            )
        )
    return response


def _read_inputs(
    request: InferRequest, signature: Signature, _regions: Regions
) -> tuple[TensorData, ...]:
    tensors: list[TensorData] = []
    for tensor in request.inputs:
        check_rank(tensor.name, len(tensor.shape))
        shape = tuple(tensor.shape)
        spec = check_declared(signature, tensor.name, tensor.datatype, shape)
        if tensor.WhichOneof("payload") != "inline":
            raise InvalidArgument(
                f"expected inline data for input '{spec.name}' for model "
                f"'{signature.model.name}', got {tensor.WhichOneof('payload') or 'none'}"
            )
        checked = TensorData(spec.name, spec.datatype, shape, tensor.inline)
        check_data(signature, spec, checked)
        tensors.append(checked)
    return in_model_order(signature, tensors)


def _read_outputs(request: InferRequest, signature: Signature, _regions: Regions) -> list[Wanted]:
    if len(set(request.outputs)) != len(request.outputs):
        raise InvalidArgument("expected every output to be requested once")
    return [Wanted(name, output_index(signature, name)) for name in request.outputs]
